"""Outputs and gradients of all ranks must be those of the reference in one process.

What it checks
    With `reference=`: the outputs of every rank, and the gradients under placements that hold,
    beside those of a plain function in one process. It gets the gathered inputs: one value of what
    is declared replicated, the shards joined of what is declared `shard(dim)`, else a list of the
    ranks' values; process groups are left out. It gives, for each output, one tensor that every
    rank must have (or that is split, where the output is declared `shard(dim)`), or a list of the
    ranks' outputs.

Why it matters
    Every other rule takes the joint forward for right. One that sums over the wrong ranks has a
    backward that agrees with it.

Fails
    dist.all_reduce(y)                 # and the reference takes the mean

Passes
    dist.all_reduce(y); y /= world_size

Cannot see
    A reference that is wrong itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pullback.check.findings.facts import At, Gradient, Output
from pullback.check.findings.finding import Finding, Rule, Skip
from pullback.check.ranks.consistency import consistent, replicated_of, shared_of
from pullback.check.ranks.joint import Joint
from pullback.check.ranks.reference import ReferenceFailed, reference_gradients, reference_outputs
from pullback.judge.example import wide_of
from pullback.judge.tolerances import ROUGH, Tolerance

RULE = Rule("R141", "reference-across-ranks", "ranks", profile="quick")
EXACT = Tolerance(1e-6, 1e-9, 1e-12)


def check(joint: Joint) -> Iterator[Finding | Skip]:
    """Outputs, and gradients where there are placements under which they can be compared."""
    if joint.reference is None:
        yield Skip(RULE, "no reference is given")
        return
    try:
        yield from _outputs(joint)
        yield from _gradients(joint)
    except ReferenceFailed as failure:
        yield Skip.refused(RULE, f"the reference cannot be compared: {failure}")


def _outputs(joint: Joint) -> Iterator[Finding | Skip]:
    key = _declared_key(joint)
    point = joint.point(key)
    have = joint.forward(point)
    want = reference_outputs(joint, point, have)
    for rank in range(joint.size):
        for number, (mine, theirs) in enumerate(zip(have[rank], want[rank], strict=True)):
            if not _is_near(joint, mine, theirs):
                joint.reported.add("reference")
                yield joint.finding(
                    RULE,
                    at=At(Output(number), rest=f" on rank {rank}"),
                    expected=_brief(theirs),
                    got=_brief(mine),
                )
                return


def _declared_key(joint: Joint) -> frozenset[int]:
    names = [joint.names[position] for position in joint.positions]
    placed = [joint.declared.of_input(name) for name in names]
    pairs = zip(joint.positions, placed, strict=True)
    return frozenset(position for position, p in pairs if p is not None and p.is_replicated)


def _gradients(joint: Joint) -> Iterator[Finding | Skip]:
    if "reference" in joint.reported or joint.reported & set(joint.names):
        return
    for assignment in consistent(joint):
        key = replicated_of(joint, assignment)
        cotangents, pulled = joint.pulled(key, 0, shared_of(joint, assignment))
        want = reference_gradients(joint, assignment, joint.point(key), cotangents, pulled)
        for position in joint.meant:
            name = joint.names[position]
            for rank in range(joint.size):
                have = pulled[rank].gradients[position]
                if assignment.of(name).has_shares:
                    continue
                if not _is_near(joint, have, want[rank][position]):
                    yield joint.finding(
                        RULE,
                        at=At(Gradient(name), rest=f" on rank {rank}, under {assignment}"),
                        expected=_brief(want[rank][position]),
                        got=_brief(have),
                    )
                    return


def _is_near(joint: Joint, have: Tensor | None, want: Tensor | None) -> bool:
    if have is None or want is None:
        other = want if have is None else have
        return other is None or not bool(other.abs().max() > 0)
    if have.shape != want.shape:
        return False
    tolerance = EXACT if joint.is_exact else ROUGH
    return tolerance.measure(wide_of(want)).fits(wide_of(have))


def _brief(value: Tensor | None) -> str:
    if value is None:
        return "none"
    flat = ", ".join(f"{v.item():.6g}" for v in value.detach().flatten()[:3])
    return f"[{flat}{', ...' if value.numel() > 3 else ''}] of shape {list(value.shape)}"
