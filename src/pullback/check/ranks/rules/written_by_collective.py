"""A collective must not write into inputs, saved tensors or cotangents.

What it checks
    Whether the memory that a collective writes is that of an input (which is not marked dirty), of
    a tensor that is saved for backward, or of a cotangent.

Why it matters
    `all_reduce` works in place: on an input it changes what the caller holds, on a saved tensor a
    second backward, on a cotangent the gradients of everything else that it flows to.

Fails
    dist.all_reduce(grad); return grad

Passes
    grad = grad.clone(); dist.all_reduce(grad); return grad

Cannot see
    Collectives made in C++; memory that is shared by other means than views.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.facts import At, Cotangent, Input
from pullback.check.finding import Finding, Rule, Severity, Skip
from pullback.check.ranks.joint import Joint

RULE = Rule("R123", "written-by-collective", "ranks", profile="quick")


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
