"""Calls must not disturb one another.

What it checks
    Two calls with different inputs are made before either backward runs; the backwards run in both
    orders, and also interleaved with a third forward. The gradients are those of single calls.

Why it matters
    State on the class, in a module or in a global is overwritten by the next forward: the first
    backward then uses the second call's numbers. Every network that uses a layer twice meets this.

Fails
    MyFunction.mask = x > 0        # in forward, read in backward

Passes
    ctx.save_for_backward(x > 0)

Cannot see
    State that only other processes or devices share.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pullback.check.example import Example
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
    is_close,
    worst_of,
)

RULE = Rule(code="T901", name="two-live-calls", group="state", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when a call changes what another one gives."""
    if subject.fails_at_base:
        yield Skip(RULE, f"backward fails at the example: {subject.fails_at_base}")
        return
    one, two = subject.base, other_values(subject.base)
    if not subject.accepts(two):
        two = one
    alone = [_alone(subject, example, draw) for draw, example in enumerate((one, two))]
    for order in ((0, 1), (1, 0)):
        try:
            runs = [subject.run(example) for example in (one, two)]
            cotangents = [subject.cotangents(run, i) for i, run in enumerate(runs)]
            subject.run(two)
            grads = {i: runs[i].pull(cotangents[i]) for i in order}
        except (BackwardFailedError, ForwardRefusedError) as failure:
            yield subject.finding(
                RULE,
                example=one,
                at="backward of one call after forward of another",
                expected="the gradients of a single call",
                got=str(failure),
                fix="keep what backward needs on ctx, not on the class or in a global",
            )
            return
        for i, found in grads.items():
            for name, got in found.items():
                expected = alone[i][name]
                if is_close(got, expected, 100) or subject.target.intent.nondeterministic:
                    continue
                at, want, have = "", str(expected is not None), str(got is not None)
                if got is not None and expected is not None and got.shape == expected.shape:
                    index, have, want = worst_of(got, expected)
                    at = f" at {list(index)}"
                yield subject.finding(
                    RULE,
                    example=one,
                    at=f"gradient of `{name}`{at}, with another call between forward and backward",
                    expected=f"{want}, as in a single call",
                    got=have,
                    fix="keep what backward needs on ctx, not on the class or in a global",
                )
                return


def _alone(subject: Subject, example: Example, draw: int) -> dict[str, Tensor | None]:
    """The gradients of a call with no other around it."""
    run = subject.run(example)
    return run.pull(subject.cotangents(run, draw))


def other_values(example: Example) -> Example:
    """The example with other numbers of the same kind: each tensor's own entries, rotated."""
    return example.map(
        lambda t: (
            (t.flatten().roll(1).reshape(t.shape) * 0.75).contiguous()
            if t.is_floating_point()
            else t
        ),
        "other values",
    )
