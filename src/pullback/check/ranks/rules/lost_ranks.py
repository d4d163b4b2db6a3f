"""Ranks that do not come to an end together; the runner finds these while it tries any rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pullback.check.findings.finding import Finding, Rule, Severity, Skip
from pullback.check.findings.registered import Registered
from pullback.check.ranks.collectives import POINT_TO_POINT, unequal_steps
from pullback.check.ranks.consistency import consistent, replicated_of, shared_of
from pullback.check.ranks.crew import RankEnd, RanksLost
from pullback.check.ranks.failed import Failed
from pullback.check.ranks.joint import Joint

GROUP = "ranks"

DEADLOCK = Rule("R151", "ranks-deadlock", GROUP, profile="quick")
DIFFERENT = Rule("R152", "different-collectives", GROUP, profile="quick")
LOST = Rule("R153", "lost-rank", GROUP, profile="quick")
FAILS = Rule("R154", "fails-on-ranks", GROUP, profile="quick")
ENDLESS = Rule("R155", "endless-rank", GROUP, profile="quick")
UNWAITED = Rule("R122", "unwaited-handle", GROUP)  # a send that is given up leaves others waiting


def of_lost(joint: Joint, lost: RanksLost, doing: str) -> Finding:
    """The finding that a loss of ranks is, with what each of them stood at."""
    rule, expected, fix = _kind(lost)
    found = joint.finding(
        rule,
        at=doing,
        expected=expected,
        got=str(lost),
        inputs="",
        fix=fix,
        remedy=rule.name,
    )
    return found


def _unlike(lost: RanksLost, *, has_aborted: bool) -> str:
    """The collective to which ranks of a group bring tensors that are not alike; else empty.

    What is alike depends on the collective, and where C++ has found it impossible, all of it is.
    """
    by_call: dict[tuple[Any, ...], set[Any]] = {}
    for entered in (one for standing in lost.standings for one in standing.entered):
        call = entered.number, entered.ranks, entered.kind[0]
        by_call.setdefault(call, set()).add(entered.tensor if has_aborted else entered.kind)
    unequal = (name for (_, _, name), brought in by_call.items() if len(brought) > 1)
    return next((name for name in unequal if name not in POINT_TO_POINT), "")


def _kind(lost: RanksLost) -> tuple[Rule, str, str]:
    has_aborted = bool(lost.ended) and all(s.is_aborted for s in lost.ended)
    inside = (RankEnd.WAITS, RankEnd.ENDED, RankEnd.RAISED) if has_aborted else (RankEnd.WAITS,)
    waiting = {s.kind for s in lost.standings if s.end in inside and s.kind}
    is_between_two = any(kind[0] in POINT_TO_POINT for kind in waiting)
    is_clear = has_aborted or not (lost.ended or lost.raised)
    unlike = _unlike(lost, has_aborted=has_aborted) if is_clear else ""
    if unlike:
        expected = f"tensors of one dtype and size from every rank in {unlike}"
        return DIFFERENT, expected, "pad what the ranks bring to one size, and cast it to one dtype"
    if len(waiting) > 1 and not is_between_two and is_clear:
        expected = "every rank makes the same collectives in the same order"
        return DIFFERENT, expected, "make the same collectives on all ranks of a group"
    if lost.ended:
        return LOST, "every rank ends by itself", "raise an exception in place of ending a process"
    if lost.raised:
        return (
            FAILS,
            "all ranks raise, or none does",
            "decide on all ranks alike, before the first collective",
        )
    if any(s.end is RankEnd.ENDLESS for s in lost.standings):
        return (
            ENDLESS,
            "every rank comes to an end, or to the collective that others wait in",
            "let the loop end on every rank",
        )
    if any(s.unwaited for s in lost.standings):
        return UNWAITED, "a call of `wait` on every handle", "keep the handle, and wait for it"
    return (
        DEADLOCK,
        "every collective is entered by all ranks of its group",
        "let the ranks take part in each collective, or in none",
    )


def of_failed(joint: Joint, failed: Failed, doing: str) -> Finding:
    """The finding that a backward is which raises."""
    ranks = ", ".join(map(str, failed.ranks))
    where = f" at {failed.first.place}" if failed.first.place else ""
    return joint.finding(
        FAILS,
        at=f"{failed.first.phase} on rank{'s' * (len(failed.ranks) > 1)} {ranks}, {doing}",
        expected="a result, as forward has accepted the inputs",
        got=failed.raised,
        why=f"raised{where}" if where else "",
        severity=Severity.WRONG,
    )


def _unequal(joint: Joint) -> Iterator[Finding | Skip]:
    """Collectives that end, and in which the ranks do not bring the same."""
    pair = unequal_steps(joint.steps)
    if pair is None:
        return
    (one, first), (two, second) = pair
    yield joint.finding(
        DIFFERENT,
        at="at the example itself",
        expected=f"the same collective on every rank: {first}",
        got=f"{second} on rank {two}, and {first} on rank {one}",
        fix="make the same collectives on all ranks of a group, with tensors of one size",
    )


def _by_values(joint: Joint) -> Iterator[Finding | Skip]:
    """A backward whose collectives depend on what a rank alone has: its cotangents, its inputs."""
    if joint.is_shared:
        yield Skip(DEADLOCK, "the ranks are the caller's own, and must not wait in vain")
        return
    found = list(_with_zeros(joint))
    yield from found or _negated(joint)


def _negated(joint: Joint) -> Iterator[Finding]:
    """Backward where the inputs of the last rank have the other sign, and forward takes them so.

    Those of one sign only may have to be so.
    """
    placed = consistent(joint)
    if not placed or joint.is_global:
        return
    point = joint.point(replicated_of(joint, placed[0]))
    rank = joint.size - 1
    turned = {
        p: -value
        for p, value in point[rank].items()
        if not placed[0].of(joint.names[p]).is_replicated
        and any(_has_both_signs(own[p]) for own in point)
    }
    point = (*point[:rank], {**point[rank], **turned})
    try:
        cotangents = joint.cotangents(joint.forward(point), 0, shared_of(joint, placed[0]))
    except (Failed, RanksLost):
        return  # no inputs of this function
    try:
        joint.pull(point, cotangents)
    except Failed:
        return
    except RanksLost as lost:
        if not (lost.raised or lost.ended):
            names = ", ".join(f"`{joint.names[p]}`" for p in turned)
            yield of_lost(joint, lost, f"backward, where rank {rank} has the negative of {names}")


def _has_both_signs(value: torch.Tensor) -> bool:
    real = torch.view_as_real(value) if value.is_complex() else value
    return bool((real > 0).any()) and bool((real < 0).any())


def _with_zeros(joint: Joint) -> Iterator[Finding]:
    """A backward whose collectives a rank leaves out where its cotangents are zero.

    Only cotangents that are each rank's own can be zero on one rank alone.
    """
    own = [a for a in consistent(joint) if not any(p.has_one_cotangent for p in a.outputs)]
    if not own or not any(step.phase == "backward" for steps in joint.steps for step in steps):
        return
    key = replicated_of(joint, own[0])
    drawn, _ = joint.pulled(key, 0)
    rank = joint.size - 1
    zeros = tuple(None if c is None else torch.zeros_like(c) for c in drawn[rank])
    try:
        joint.pull(joint.point(key), [*drawn[:rank], zeros])
    except RanksLost as lost:
        yield of_lost(joint, lost, f"backward, where the cotangents of rank {rank} are zero")


def _none(joint: Joint) -> Iterator[Finding | Skip]:
    """Nothing by itself: the runner finds it while it tries any other rule."""
    return iter(())


DEADLOCK_PAGE = """Every collective must be entered by all ranks of its group.

What it checks
    Whether all ranks come to an end, also where the cotangents of one rank are zero, or its inputs
    the negative of what they were. What each of them stood at is told: the collective, its group
    and the user's line.

Why it matters
    A training that hangs holds hundreds of machines until somebody looks, and says nothing.

Fails
    if grad.abs().sum() > 0:
        dist.all_reduce(grad)          # on the ranks where that is so

Passes
    dist.all_reduce(grad)

Cannot see
    Deadlocks at inputs that no rule tries, and those of the networks of other machines.
"""

DIFFERENT_PAGE = """All ranks of a group must make the same collectives in the same order.

What it checks
    The collectives that ranks wait in when nothing moves any more, and those of calls that ended:
    their names, dtypes and sizes.

Why it matters
    Ranks that bring different sizes or orders hang, crash, or read each other's memory.

Fails
    for name in set(names): dist.all_reduce(grads[name])   # the order differs by process

Passes
    for name in sorted(names): dist.all_reduce(grads[name])

Cannot see
    Collectives that C++ makes (DDP, functional collectives), and sums beside other reductions.
"""

LOST_PAGE = """No rank may end, or be ended, while others wait for it.

What it checks
    Whether the process of each rank is still there when a call is through.

Why it matters
    The others hang until a timeout of half an hour, far from the cause.

Fails
    os._exit(1)                        # on one rank

Passes
    raise ValueError("the shards must be of one size")     # on all ranks

Cannot see
    Crashes at inputs that no rule tries.
"""

FAILS_PAGE = """Ranks must raise together, and backward must not raise after forward has not.

What it checks
    Whether some ranks raise while others wait for them, and whether backward raises at inputs that
    forward has accepted.

Why it matters
    One rank's exception is the others' deadlock.

Fails
    if rank == 0: assert x.numel() % 2 == 0

Passes
    assert x.numel() % 2 == 0          # before the first collective, of what all ranks know

Cannot see
    Errors at inputs that no rule tries.
"""

ENDLESS_PAGE = """No rank may compute without end while others wait for it.

What it checks
    Whether a rank comes to its end, or to a collective. It is given up after eight seconds of its
    processor in which it was seen to stand in the Function's code, or twenty times as many as that
    took before. Where something is compiled, or another package works, it has two minutes.

Why it matters
    The others wait until a timeout of half an hour, and none of them knows for what.

Fails
    while error > 1e-12: error = step()      # of this rank's shard, which may never come so far

Passes
    for _ in range(steps): step()            # as often on every rank

Cannot see
    Loops at inputs that no rule tries. Inputs may take two minutes to make.
"""

RULES = (
    Registered(DEADLOCK, _by_values, DEADLOCK_PAGE),
    Registered(DIFFERENT, _unequal, DIFFERENT_PAGE),
    Registered(LOST, _none, LOST_PAGE),
    Registered(FAILS, _none, FAILS_PAGE),
    Registered(ENDLESS, _none, ENDLESS_PAGE),
)
