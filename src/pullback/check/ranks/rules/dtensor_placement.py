"""A DTensor that says it is replicated must be the same on all ranks.

What it checks
    The local parts of DTensors that forward and backward give with the placement `Replicate`.

Why it matters
    Placements are claims that nothing checks: `DTensor.from_local(y, mesh, [Replicate()])` of what
    is still to be summed trains with one rank's part.

Fails
    DTensor.from_local(part, mesh, [Replicate()], run_check=False)

Passes
    DTensor.from_local(part, mesh, [Partial()]).redistribute(placements=[Replicate()])

Cannot see
    Shards that are in the wrong order: those are wrong gradients, see wrong-across-ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.findings.facts import At
from pullback.check.findings.finding import Finding, Rule, Skip
from pullback.check.ranks.blocks import is_one_value
from pullback.check.ranks.joint import Joint
from pullback.check.ranks.programs import program_of_parts

RULE = Rule("R142", "dtensor-placement", "ranks", profile="quick")


def check(joint: Joint) -> Iterator[Finding | Skip]:
    """Parts of the first call that differ between ranks."""
    if not joint.is_global:
        yield Skip(RULE, "no input is a DTensor")
        return
    every = [reply.value.locals for reply in joint.first]
    for parts in zip(*every, strict=False):
        rank = next(
            (r for r, p in enumerate(parts) if not is_one_value([parts[0].value, p.value])), 0
        )
        if rank:
            joint.reported.add("placement")
            yield joint.finding(
                RULE,
                at=At(parts[0].what),
                repro=program_of_parts(joint, parts[0].what, rank),
                expected="the same on all ranks, as its placement Replicate says",
                got="parts that differ between ranks",
                fix="redistribute what is partial, or name its placement",
            )
