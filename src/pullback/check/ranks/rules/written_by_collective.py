"""A collective must not write into inputs, saved tensors or cotangents.

What it checks
    Whether the memory that a collective writes is that of an input (which is not marked dirty), of
    a tensor that is saved for backward, or of a cotangent; and whether one more forward changes
    the gradients of the call before it.

Why it matters
    `all_reduce` works in place: on an input it changes what the caller holds, on a saved tensor a
    second backward, on a cotangent the gradients of everything else that it flows to. A buffer that
    all layers gather into holds the last layer's values when the first one's backward reads it.

Fails
    dist.all_reduce(grad); return grad

Passes
    grad = grad.clone(); dist.all_reduce(grad); return grad

Cannot see
    Collectives made in C++; memory that is shared by other means than views.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.findings.facts import At, Cotangent, Gradient, Input
from pullback.check.findings.finding import Finding, Rule, Severity, Skip
from pullback.check.ranks.blocks import is_one_value
from pullback.check.ranks.failed import Failed
from pullback.check.ranks.joint import Joint

RULE = Rule("R123", "written-by-collective", "ranks", profile="quick")
BETWEEN = 0.5  # of a value, in the call between forward and backward


def check(joint: Joint) -> Iterator[Finding | Skip]:
    """What the collectives of the first call wrote."""
    if not any(joint.steps):
        yield Skip(RULE, "it makes no collective")
        return
    told: set[tuple[str, int]] = set()
    for rank, reply in enumerate(joint.first):
        for what, number, step in reply.value.written:
            if (what, number) in told:
                continue
            told.add((what, number))
            thing = (
                At(Input(joint.names[number]))
                if what == "input"
                else At(Cotangent(number))
                if what == "cotangent"
                else At("a tensor that is saved for backward")
            )
            yield joint.finding(
                RULE,
                at=thing.then(f", in {step.phase} on rank {rank}"),
                expected="as it was",
                got=f"written by {step}",
                fix="clone the tensor first",
                severity=Severity.FRAGILE if what == "cotangent" else None,
            )
    if not told and not joint.is_unsettled and joint.positions:
        yield from _by_next_call(joint)


def _by_next_call(joint: Joint) -> Iterator[Finding | Skip]:
    """Gradients that one more forward, with other values, changes before backward."""
    point = joint.point(frozenset())
    other = tuple({p: value * BETWEEN for p, value in values.items()} for values in point)
    outputs = joint.forward(point)
    cotangents = joint.cotangents(outputs, 0)
    try:
        alone, again = joint.pull(point, cotangents), joint.pull(point, cotangents)
        after = joint.pull(point, cotangents, between=other)
    except Failed:
        return  # with these values it cannot be called: nothing is known
    for position in joint.positions:
        for rank in range(joint.size):
            first, second, third = (
                pulled[rank].gradients.get(position) for pulled in (alone, again, after)
            )
            if is_one_value([first, second]) and not is_one_value([first, third]):
                yield joint.finding(
                    RULE,
                    at=At(Gradient(joint.names[position])).then(
                        f" on rank {rank}, after one more forward"
                    ),
                    expected="as without it",
                    got="another: it wrote what backward reads of the call before",
                    fix="gather into a new tensor, or gather again in backward",
                )
                return
