"""Results must not depend on which rank comes first.

What it checks
    Outputs and gradients when one rank is late for every collective, beside those when another is.

Why it matters
    A receive from any rank, or a buffer that is read before it is full, gives numbers that change
    from run to run, and mostly not on the machine where they are looked for.

Fails
    dist.recv(buffer)                  # from whoever comes first

Passes
    dist.recv(buffer, src=source)

Cannot see
    Orders that did not show; sums whose rounding depends on the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from pullback.check.findings.explaining import Cause
from pullback.check.findings.facts import At, Gradient, Output
from pullback.check.findings.finding import Finding, Rule, Skip
from pullback.check.ranks.commands import Pulled
from pullback.check.ranks.joint import UNWAITED, Joint
from pullback.judge.tolerances import is_close

RULE = Rule("R121", "arrival-order", "ranks")
COMPARING = frozenset(
    {
        *("wrong-across-ranks", "uneven-shards", "frozen-across-ranks", "written-by-collective"),
        *("second-across-ranks", "strided-across-ranks", "reference-across-ranks"),
        *("wrapped-differs", "unequal-gradients"),
    }
)
EXPLAINS = (Cause(COMPARING, "they compare numbers that depend on the order", rank=15),)
LATE = 0.03  # seconds
APART = 0.1  # seconds between two ranks that send to whoever takes it


def check(joint: Joint) -> Iterator[Finding | Skip]:
    """What differs when another rank is late."""
    if not any(joint.steps):
        yield Skip(RULE, "it makes no collective")
        return
    if joint.is_unsettled:
        yield Skip(RULE, UNWAITED)
        return
    key = frozenset[int]()
    cotangents, usual = joint.pulled(key, 0)
    point = joint.point(key)
    for words, delays in orders(joint):
        now = joint.pull(point, cotangents, delays=delays)
        for at in differing_arrivals(joint, usual, now):
            yield joint.finding(
                RULE,
                at=at.then(f", when {words}"),
                expected="the same as when all come at once",
                got="another value",
                fix="name the rank to receive from, and wait before the buffer is read",
            )
            return


def orders(joint: Joint) -> Iterator[tuple[str, list[float]]]:
    """How late each rank is for its collectives, in words and seconds.

    Where a rank receives from any other, all others come one after the other, in both orders.
    """
    ranks = range(joint.size)
    for late in dict.fromkeys((0, joint.size - 1)):
        yield f"rank {late} is late", [LATE if rank == late else 0.0 for rank in ranks]
    takers = [rank for rank, steps in enumerate(joint.steps) if any(s.is_from_any for s in steps)]
    if takers:
        senders = [rank for rank in ranks if rank not in takers]
        for order in (senders, senders[::-1]):
            delays = [APART * (order.index(rank) + 1) if rank in order else 0.0 for rank in ranks]
            yield f"the ranks come in the order {', '.join(map(str, order))}", delays


def differing_arrivals(
    joint: Joint, before: Sequence[Pulled], now: Sequence[Pulled]
) -> Iterator[At]:
    """What came otherwise."""
    for rank, (old, new) in enumerate(zip(before, now, strict=True)):
        where = f" on rank {rank}"
        for number, (a, b) in enumerate(zip(old.outputs, new.outputs, strict=True)):
            if _differs(a, b):
                yield At(Output(number), rest=where)
        for position, gradient in old.gradients.items():
            if _differs(gradient, new.gradients.get(position)):
                yield At(Gradient(joint.names[position]), rest=where)


def _differs(one: Tensor | None, two: Tensor | None) -> bool:
    if one is None or two is None:
        return one is not two
    return one.shape != two.shape or not is_close(one, two, 100)
