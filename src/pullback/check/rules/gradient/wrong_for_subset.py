"""Gradients must be right for every subset of inputs that require grad.

What it checks
    For each subset of the inputs: forward with only these requiring grad, and backward asked for
    only these (`backward(inputs=...)`), give the same gradients as with all of them; and forward
    gives the same outputs with none.

Why it matters
    Weights are frozen, data needs no gradient, inference needs none at all. Liger#930 crashed when
    nothing required grad, ms-swift#9790 with a frozen weight.

Fails
    if ctx.needs_input_grad[1]: grad_x = ...   # asks about the wrong input

Passes
    if ctx.needs_input_grad[0]: grad_x = ...

Cannot see
    With more than five differentiable inputs, only single inputs and their complements are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from pullback.check.example import tensors_in
from pullback.check.facts import At, Gradient, Output
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
    each,
    is_close,
    told,
    worst_of,
)

RULE = Rule(code="G108", name="wrong-for-subset", group="gradient", profile="quick")

MOST = 5


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding for forward and one per gradient."""
    if subject.fails_at_base:
        yield Skip.refused(RULE, f"backward fails at the example: {subject.fails_at_base}")
        return
    needs = tuple(sorted(subject.base.needs))
    raised: set[str] = set()
    for finding in _without_any(subject):
        raised.add(finding.got)
        yield finding
    whole = subject.pull()
    done: set[str] = set()
    for chosen in each(_subsets(needs), subject):
        words = subject.names_at(chosen)
        for way in ("requires_grad", "inputs"):
            try:
                if way == "requires_grad":
                    grads = subject.pull(needs=chosen)
                else:
                    run = subject.run()
                    wanted = [n for n in (subject.names[i] for i in chosen) if n in run.leaves]
                    grads = run.pull(subject.cotangents(run), wanted=wanted)
            except (BackwardFailedError, ForwardRefusedError) as failure:
                if told(failure.error) in raised:
                    return  # it is the same defect
                phase = "backward" if isinstance(failure, BackwardFailedError) else "forward"
                yield subject.finding(
                    RULE,
                    example=subject.base,
                    at=f"{phase} when only {words} must have a gradient",
                    expected="the same gradients as with all",
                    got=told(failure.error),
                    fix="return None where no gradient is needed, and ask for nothing that is not",
                )
                return
            for name, got in grads.items():
                expected = whole.get(name)
                if name in done or is_close(got, expected, 10):
                    continue
                done.add(name)
                index, have, want = (
                    worst_of(got, expected)
                    if got is not None and expected is not None and got.shape == expected.shape
                    else ((), str(None if got is None else "a gradient"), "a gradient")
                )
                yield subject.finding(
                    RULE,
                    example=subject.base,
                    at=At(Gradient(name), index, rest=f", when only {words} needs one"),
                    expected=want,
                    got=have,
                    fix="let needs_input_grad[i] decide about the gradient of argument i",
                )


def _without_any(subject: Subject) -> Iterator[Finding]:
    try:
        plain = subject.run(needs=())
    except ForwardRefusedError as refusal:
        yield subject.finding(
            RULE,
            example=subject.base,
            at="forward when no input requires grad",
            expected="the same outputs as otherwise",
            got=told(refusal.error),
            fix="prepare for backward only what backward will need, and forward without it",
        )
        return
    usual = subject.run()
    for i, (got, expected) in enumerate(
        zip(tensors_in(plain.result), tensors_in(usual.result), strict=False)
    ):
        if got.is_floating_point() and not is_close(got, expected, 10):
            index, have, want = worst_of(got, expected)
            yield subject.finding(
                RULE,
                example=subject.base,
                at=At(Output(i), index, rest=", when no input requires grad"),
                expected=want,
                got=have,
                fix="let forward compute the same whether or not a gradient is needed",
            )
            return


def _subsets(needs: tuple[int, ...]) -> list[tuple[int, ...]]:
    counts = range(1, len(needs)) if len(needs) <= MOST else (1, len(needs) - 1)
    return [chosen for count in counts for chosen in combinations(needs, count)]
