"""A Function that takes shards of different sizes must give their gradients.

What it checks
    Where forward accepts it that the last rank has one row less: the gradients of all ranks, under
    the placements that hold for even shards, and whether backward comes to an end.

Why it matters
    The last batch, a vocabulary that the ranks do not divide, tokens that go to experts: sizes are
    even in tests, and not in training.

Fails
    return grads.chunk(world_size)[rank]

Passes
    return grads.split(ctx.sizes)[rank]

Cannot see
    Functions whose forward refuses such shards, is told their size by an argument, or brings them
    to a collective as they are, which PyTorch does not define; other dimensions than the first.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.findings.facts import At, Gradient
from pullback.check.findings.finding import Finding, Rule, Severity, Skip
from pullback.check.ranks.consistency import consistent, judged, replicated_of
from pullback.check.ranks.crew import RanksLost
from pullback.check.ranks.failed import Failed
from pullback.check.ranks.joint import UNWAITED, Joint, JointPoint
from pullback.check.ranks.placements import Assignment

RULE = Rule("R111", "uneven-shards", "ranks")
KEY = "uneven"


def check(joint: Joint) -> Iterator[Finding | Skip]:
    """The gradients where the last rank of each block has a row less."""
    if joint.is_shared:
        yield Skip(RULE, "the ranks are the caller's own, and forward may end them")
        return
    if joint.is_unsettled:
        yield Skip(RULE, UNWAITED)
        return
    found = consistent(joint)
    if not found:
        yield Skip(RULE, "the gradients are wrong at even shards")
        return
    points = ((assignment, uneven(joint, assignment)) for assignment in found)
    assignment, point = next((pair for pair in points if pair[1] is not None), (found[0], None))
    if point is None:
        yield Skip(RULE, "no input is sharded into rows of a number that no argument tells")
        return
    joint.set_point(KEY, point)
    try:
        is_uneven = joint.is_uneven_on_the_way(point)
    except (Failed, RanksLost) as refusal:
        yield Skip(RULE, f"forward takes no uneven shards: {refusal}")
        return
    if is_uneven:
        joint.renew()  # what was sent too much or too little may end them later
        yield Skip(RULE, "forward brings shards of different sizes to one collective")
        return
    yield from _judged(joint, assignment)


def _judged(joint: Joint, assignment: Assignment) -> Iterator[Finding | Skip]:
    words = "one row less on the last rank"
    try:
        verdict = judged(joint, assignment, KEY)
    except (Failed, RanksLost) as failure:
        yield joint.finding(
            RULE,
            at=f"backward, with {words}",
            expected="gradients, if shards may be uneven",
            got=str(failure),
            severity=Severity.FRAGILE,
        )
        return
    if verdict.is_right or not verdict.is_possible:
        return
    for rows in verdict.wrong:
        rank = next((r for r, w in enumerate(rows.wrong) if bool(w.any())), 0)
        yield joint.finding(
            RULE,
            at=At(Gradient(rows.name), rest=f" on rank {rank}, with {words}"),
            expected="the gradient of the joint forward, if shards may be uneven",
            got="another one",
            severity=Severity.FRAGILE,
            why=f"right under {assignment} with even shards",
            fix="split by the sizes that the ranks brought, not into equal parts",
        )


def _sharded(joint: Joint, assignment: Assignment) -> list[int]:
    """The positions of sharded inputs that matter on the ranks that are to have less."""
    last = [block[-1] for block in joint.blocks]
    slopes = joint.slopes(replicated_of(joint, assignment))
    return [
        p
        for p in joint.positions
        if not assignment.of(joint.names[p]).is_replicated
        and all((rank, p) in slopes and slopes[rank, p].is_felt for rank in last)
    ]


def uneven(joint: Joint, assignment: Assignment) -> JointPoint | None:
    """The point with a row less of each sharded input on the last rank of each block."""
    if joint.is_global:
        return None
    positions = _sharded(joint, assignment)
    values = [dict(one) for one in joint.point(frozenset(joint.positions) - frozenset(positions))]
    shapes = {tuple(v[p].shape) for v in values for p in positions}
    sizes = {shape[0] if shape else 0 for shape in shapes}
    if len(sizes) != 1 or min(sizes) < 2:
        return None
    size = sizes.pop()
    if any(size in argument.numbers for given in joint.given for argument in given.args):
        return None  # an argument tells the size, and would be wrong
    for block in joint.blocks:
        last = block[-1]
        for position in positions:
            values[last][position] = values[last][position][: size - 1].contiguous()
        for position, value in joint.companions(last, size).items():
            values[last][position] = value
    return tuple(values)
