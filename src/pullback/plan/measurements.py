"""The records of a plan: what a candidate is, and what was measured of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pullback.compose import combine, hybrid, nest
from pullback.plan.groupings import Grouping

NESTED, COMBINED, HYBRID = "nested", "combined", "hybrid"

INEXACT = 10.0  # times the error of the most exact candidate: beyond it, accuracy is lost


@dataclass(frozen=True, slots=True, order=True)
class PlanCandidate:
    """A way to run a program.

    `how` is "nested", "combined" or "hybrid"; `groups` are the nodes of a hybrid, by the numbers of
    their units. A nested program has neither backend nor policy of saving.
    """

    how: str
    groups: Grouping = ()
    backend: str = ""
    save: str = ""

    def __str__(self) -> str:
        if self.how == NESTED:
            return NESTED
        return f"{self.how} ({self.backend}, save {self.save})"


AS_WRITTEN = PlanCandidate(NESTED)


def build_candidate(
    program: Callable[..., Any], candidate: PlanCandidate, args: Sequence[Any]
) -> Any:
    """The composition of `program` that a candidate stands for, made with `args` as examples."""
    if candidate.how == NESTED:
        return nest(program)
    options: Any = {"backend": candidate.backend, "save": candidate.save}
    if candidate.how == COMBINED:
        return combine(program, *args, **options)
    return hybrid(program, *args, groups=candidate.groups, **options)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured of a candidate at one size.

    `seconds` is the median time of one call forward and backward. `relative` is it as a part of the
    time of the program as written, within rounds, with the interval from `low` to `high`. `saved`
    are the bytes kept for backward besides the inputs, `peak` the most held at once, `error` how
    far the gradients are from those in double precision, and `is_inexact` whether that is clearly
    more than another candidate's. What was not measured is None.
    """

    candidate: PlanCandidate
    label: str
    nodes: int
    seconds: float
    relative: float
    low: float
    high: float
    saved: int | None = None
    peak: int | None = None
    error: float | None = None
    is_inexact: bool = False

    @property
    def speedup(self) -> float:
        """How many times as fast as the program as written."""
        return 1 / self.relative

    def __str__(self) -> str:
        slow, fast = 1 / self.high, 1 / self.low
        marked = ", loses accuracy" if self.is_inexact else ""
        return f"{self.label}: {self.speedup:.2f} times ({slow:.2f} to {fast:.2f}){marked}"


def marked(rows: Sequence[Measurement], rounding: float) -> tuple[Measurement, ...]:
    """The rows, with those marked that lose accuracy; `rounding` is that of the inputs' numbers."""
    known = [row.error for row in rows if row.error is not None]
    limit = INEXACT * max(rounding, min(known, default=0.0))
    return tuple(
        replace(row, is_inexact=row.error is not None and row.error > limit) for row in rows
    )


def front(rows: Sequence[Measurement]) -> Iterator[Measurement]:
    """The rows that no other beats in time without keeping more bytes, fastest first."""
    least: int | None = None
    for row in sorted(rows, key=lambda row: (row.relative, row.saved or 0)):
        if row.saved is not None and (least is None or row.saved < least):
            least = row.saved
            yield row


# ---- labels ----

_NAMES = 6  # names of units in one node that are written out


def label_of(candidate: PlanCandidate, names: Sequence[str]) -> str:
    """A grouping as text: the units of one node stand in brackets, the others are as written.

    Nodes follow each other as their first units do. What repeats is counted.
    """
    if candidate.how == COMBINED:
        return _bracket(names)
    home = {unit: group for group in candidate.groups for unit in group}
    parts = []
    for unit, name in enumerate(names):
        group = home.get(unit)
        if group is None:
            parts.append(name)
        elif unit == group[0]:
            parts.append(_bracket([names[member] for member in group]))
    return " ".join(_counted(parts))


def _bracket(names: Sequence[str]) -> str:
    if len(names) > _NAMES:
        return f"[{' '.join(names[:3])} ... {names[-1]}: {len(names)} units]"
    return f"[{' '.join(names)}]"


def _counted(parts: Sequence[str]) -> Iterator[str]:
    """The parts, with equal ones in a row written once; so are pairs, up to eight in a row."""
    place = 0
    while place < len(parts):
        length, times = 1, 1
        for size in range(1, 9):
            count = _times(parts, place, size)
            if (count - 1) * size > (times - 1) * length:
                length, times = size, count
        text = " ".join(parts[place : place + length])
        yield text if times == 1 else f"{text} x{times}" if length == 1 else f"({text}) x{times}"
        place += length * times


def _times(parts: Sequence[str], place: int, size: int) -> int:
    first, count = list(parts[place : place + size]), 1
    while list(parts[place + count * size : place + (count + 1) * size]) == first:
        count += 1
    return count if len(first) == size else 1


def node_count(candidate: PlanCandidate, units: int) -> int:
    """How many nodes run: those of groups, and each other unit by itself."""
    if candidate.how == COMBINED:
        return 1
    return units - sum(len(group) - 1 for group in candidate.groups)
