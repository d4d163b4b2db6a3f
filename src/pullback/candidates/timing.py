"""Times of calls, the intervals of their ratios, and whether a clock can be believed.

A candidate's process tells how long its calls took; the process that asked for them looks at its
own clock as well, which no candidate can reach. Nothing here reads a clock by itself.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

DRAWS = 1000  # of rounds, for an interval
BELIEVED = 1.6  # times as long as reported may a call take by the clock outside
SLACK = 2e-3  # seconds that a section of calls may take beyond: messages, other programs
CACHED = 2.0  # times as long a call takes at new numbers as at old ones, where these are looked up
DRIFT = 0.98  # of the rate of another clock that one may have
FEW = 5  # rounds that are too few to say anything


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times faster, and the interval that holds it in nineteen of twenty cases."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        """As plain data."""
        return {"value": self.value, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def speedup(mine: Sequence[float], theirs: Sequence[float], seed: int = 0) -> Ratio | None:
    """The median of their times over that of mine, by a bootstrap of the rounds.

    The rounds go together: a round that another program disturbed is drawn for both.
    """
    count = min(len(mine), len(theirs))
    if count < FEW:
        return None
    rng = random.Random(seed)
    value = statistics.median(theirs[:count]) / statistics.median(mine[:count])
    drawn = []
    for _ in range(DRAWS):
        rounds = [rng.randrange(count) for _ in range(count)]
        above = statistics.median(theirs[i] for i in rounds)
        drawn.append(above / statistics.median(mine[i] for i in rounds))
    drawn.sort()
    return Ratio(value, drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1])


def is_believed(reported: Sequence[float], sections: Sequence[tuple[int, float]]) -> bool:
    """Whether what a process reports of its calls can be true.

    `sections` are numbers of calls in a row, with the seconds that they took by the clock outside;
    the shortest counts, since other programs only add to it.
    """
    if not reported or not sections:
        return True
    usual = statistics.median(reported)
    return any(seconds <= calls * usual * BELIEVED + SLACK for calls, seconds in sections)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a clock of a candidate's process said, between two looks at the clock outside."""

    said: float
    earliest: float
    latest: float


def is_steady(first: Reading, last: Reading) -> bool:
    """Whether a clock went as fast as the one outside, between two readings of it."""
    least, most = last.earliest - first.latest, last.latest - first.earliest
    return DRIFT * least <= last.said - first.said <= most / DRIFT


def is_looked_up(new: Sequence[float], old: Sequence[float]) -> bool:
    """Whether calls at numbers that were there before take far less time than at new ones."""
    found = speedup(old, new)
    return found is not None and found.low > CACHED and min(new) > max_of_half(old)


def max_of_half(times: Sequence[float]) -> float:
    """The longest of the shorter half: what a call takes when nothing disturbs it."""
    return sorted(times)[len(times) // 2]
