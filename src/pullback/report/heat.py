"""A wrong gradient as maps: what was expected, what came, and the difference, entry by entry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pullback.check.findings.facts import Sheet, number
from pullback.check.findings.finding import Finding
from pullback.judge.mismatch import flat_of

NEAR = 1e-3  # how far a number of the sheet may be from that of the finding, as a part of it
Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry: its colour, how full that is, what it says, and whether it is the worst."""

    kind: str  # "up" | "down" | "none" (not a finite number)
    share: float
    text: str
    is_worst: bool


@dataclass(frozen=True, slots=True)
class Heat:
    """One map, and the number at which its colours are full."""

    title: str
    most: str
    rows: list[list[Cell]]


def heats_of(finding: Finding) -> list[Heat]:
    """The maps of a finding; none where its gradient is not kept, or is another one by now."""
    sheet = finding.about.sheet
    if sheet is None or not _is_of(sheet, finding):
        return []
    apart = [
        [got - want for want, got in zip(*pair, strict=True)]
        for pair in zip(sheet.expected, sheet.got, strict=True)
    ]
    most = _most(sheet.expected, sheet.got)
    worst = _worst(finding, sheet)
    return [
        _heat("expected", sheet.expected, most, worst, sheet),
        _heat("got", sheet.got, most, worst, sheet),
        _heat("difference", apart, _most(apart), worst, sheet),
    ]


def _is_of(sheet: Sheet, finding: Finding) -> bool:
    """Whether the sheet has the number that the finding names, where it names it."""
    about = finding.about
    expected = None if about.expected is None else about.expected.value
    if not isinstance(expected, (int, float)):
        return False
    place = _worst(finding, sheet)
    if place is None:
        return len(sheet.shape) == 0
    have = [value for row in sheet.expected for value in row][place]
    return abs(have - expected) <= NEAR * abs(expected) or have == expected


def _worst(finding: Finding, sheet: Sheet) -> int | None:
    index = finding.about.index
    if index is None or len(index) != len(sheet.shape):
        return None
    if any(not 0 <= i < size for i, size in zip(index, sheet.shape, strict=True)):
        return None
    return flat_of(index, sheet.shape)


def _most(*sheets: Rows) -> float:
    sizes = [abs(v) for rows in sheets for row in rows for v in row if math.isfinite(v)]
    return max(sizes, default=0.0) or 1.0


def _heat(title: str, rows: Rows, most: float, worst: int | None, sheet: Sheet) -> Heat:
    width = sheet.shape[-1]
    cells = [
        [_cell(value, most, i * width + j, worst, sheet) for j, value in enumerate(row)]
        for i, row in enumerate(rows)
    ]
    return Heat(title, number(most, 3), cells)


def _cell(value: float, most: float, flat: int, worst: int | None, sheet: Sheet) -> Cell:
    index = []
    rest = flat
    for size in reversed(sheet.shape):
        index.append(rest % size)
        rest //= size
    text = f"{list(reversed(index))}: {number(value)}"
    if not math.isfinite(value):
        return Cell("none", 1.0, text, flat == worst)
    share = round(abs(value) / most, 3)
    return Cell("up" if value >= 0 else "down", share, text, flat == worst)
