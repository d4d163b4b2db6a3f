"""Side-by-side timing: interleaved rounds, medians, and ratios taken within a round.

Machines drift by more than the differences that matter, so nothing here compares two times that
were not taken moments apart. Each round runs every candidate once, in a new order; a ratio is the
median over rounds of (candidate in that round / reference in that round).
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of one candidate, one number per round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over rounds."""
        return statistics.median(self.rounds)

    def ratio(self, reference: Timing) -> float:
        """The median over rounds of this candidate's time over the reference's."""
        pairs = zip(self.rounds, reference.rounds, strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    def spread(self, reference: Timing) -> tuple[float, float]:
        """The quartiles over rounds of this candidate's time over the reference's."""
        pairs = zip(self.rounds, reference.rounds, strict=True)
        first, _, third = statistics.quantiles(mine / other for mine, other in pairs)
        return first, third


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 41,
    seconds: float = 0.005,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, Timing]:
    """Time every candidate in `rounds` shuffled rounds of about `seconds` each.

    The default clock counts the process's own CPU time, which other programs do not disturb.
    """
    counts = {name: _calls_for(call, seconds, clock) for name, call in candidates.items()}
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    shuffle = random.Random(0).shuffle
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            shuffle(order)
            for name in order:
                taken[name].append(_time(candidates[name], counts[name], clock))
            gc.collect(0)
    finally:
        gc.enable()
    return {name: Timing(tuple(times)) for name, times in taken.items()}


def _time(call: Callable[[], object], count: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(count):
        call()
    return (clock() - start) / count


def _calls_for(call: Callable[[], object], seconds: float, clock: Callable[[], float]) -> int:
    call()
    if _time(call, 1, clock) > 5 * seconds:  # long enough to be timed alone
        return 1
    for _ in range(20):
        call()
    each = max(_time(call, 20, clock), 1e-7)
    return max(3, int(seconds / each))
