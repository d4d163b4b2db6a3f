"""Side-by-side timing: interleaved rounds, and ratios that are taken within a round.

Machines drift by more than the differences that matter, so no two times are compared that were not
taken moments apart. A round runs every candidate, in a new order; the ratio of two candidates is
the median over rounds, and its interval holds the true median in nineteen of twenty cases. Where
other programs take most of the machine, so that a candidate usually takes several times as long as
it can, the shortest times are used: other programs only add to them.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Key = TypeVar("Key")

WILD = 3.0  # times the shortest time: a larger median is due to other programs


def interleave(
    time: Callable[[Any], float],
    tasks: Mapping[Key, Any],
    taken: dict[Key, list[float]],
    *,
    rounds: int,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Add what `time` gives for each task to its row in `taken`, in rounds.

    A round is added whole or, if something stops it, not at all. It ends early where `is_over`.
    """
    order = list(tasks)
    shuffle = random.Random(len(next(iter(taken.values()), ()))).shuffle
    with _no_collection():
        for _ in range(rounds):
            if is_over():
                return
            shuffle(order)
            fresh = {key: time(tasks[key]) for key in order}
            for key in tasks:
                taken.setdefault(key, []).append(fresh[key])
            gc.collect(0)


@contextmanager
def _no_collection() -> Iterator[None]:
    """The collector of garbage runs between rounds only."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def typical(times: Sequence[float]) -> float:
    """What a candidate takes: the median, or the shortest where times are disturbed."""
    return min(times) if _is_wild(times) else statistics.median(times)


def ratio(mine: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """What mine takes over what the other takes, and its interval.

    Both rows begin with the same round; what one has beyond the other is left out.
    """
    count = min(len(mine), len(other))
    mine, other = mine[:count], other[:count]
    ratios = sorted(a / b for a, b in zip(mine, other, strict=True))
    low, high = _ranks(count)
    middle = statistics.median(ratios)
    if _is_wild(mine) or _is_wild(other):
        middle = min(mine) / min(other)
    return middle, min(ratios[low], middle), max(ratios[high], middle)


def _is_wild(times: Sequence[float]) -> bool:
    return statistics.median(times) > WILD * min(times)


def _ranks(count: int) -> tuple[int, int]:
    """The places in a sorted row between which its median lies, at 95 percent."""
    half = 0.98 * math.sqrt(count)
    low = max(0, math.floor(count / 2 - half))
    return low, count - 1 - low
