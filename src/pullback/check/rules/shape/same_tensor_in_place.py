"""An in-place function must be right where one tensor stands in two slots.

What it checks
    A function that writes into an input is called with one tensor in each two slots of one shape,
    inside a network: where forward takes it, the gradient is that of the same forward.

Why it matters
    `a.mul_(b)` with `b` saved overwrites what it saved once `a` and `b` are the same: `f(x, x)`
    has the gradient of other numbers.

Fails
    ctx.save_for_backward(a.clone(), b); a.mul_(b)

Passes
    ctx.save_for_backward(a.clone(), b.clone()); a.mul_(b)

Cannot see
    Tensors that overlap in memory without being the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pullback.check.findings.facts import At, Both
from pullback.check.subject.subject import CallError, Finding, Rule, Skip, Subject, each
from pullback.judge.example import Example

RULE = Rule("S311", "same-tensor-in-place", "shape", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per pair of slots."""
    if not subject.writes_inputs or subject.fails_at_base or subject.wrong_names:
        return
    if subject.target.intent.has_surrogate or not subject.is_steady:
        return
    start = subject.small
    floats = [i for i in start.differentiable if i in start.needs]
    pairs = [(i, j) for k, i in enumerate(floats) for j in floats[k + 1 :]]
    for i, j in each(pairs, subject):
        one, two = start.args[i], start.args[j]
        if one.shape != two.shape or one.dtype != two.dtype:
            continue
        call = _in_both(subject.target.call, i, j)
        example = Example(start.args, frozenset({i}), f"one tensor in slots {i} and {j}")
        both = subject.other(example, call)
        try:
            wrong = both.judge(example)
        except CallError:
            continue
        at = At(Both(subject.names[i], subject.names[j]))
        for mismatch in wrong:
            yield subject.mismatched(
                RULE,
                mismatch,
                example,
                at=at.then(f", at {list(mismatch.index or ())}"),
                fix="clone what is saved before forward writes, also where inputs are the same",
            )


def _in_both(call: Callable[..., Any], i: int, j: int) -> Callable[..., Any]:
    """The call with one tensor in two slots, made before it as a layer before it would."""

    def both(*args: Any) -> Any:
        full = list(args)
        full[i] = full[j] = args[i] * 1
        return call(*full)

    return both
