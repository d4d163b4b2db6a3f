"""Derivatives by differences whose error is estimated, not assumed.

A derivative is taken with differences at steps h, h/2, h/4, ... and Richardson extrapolation. The
table of extrapolated values shows its own error: how far neighbouring entries are apart. Rounding
makes small steps noisy and curvature makes large ones wrong; the best entry is where both are
least. A kink shows as two one-sided derivatives that disagree beyond their errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pullback.judge.tolerances import ERRORS, UNCERTAIN, UNCERTAIN_AT_ZERO

Curve = Callable[[float], float]

STEPS = 8  # steps at most, each smaller than the one before
SHRINK = 2.0  # by so much


@dataclass(frozen=True, slots=True)
class Estimate:
    """A derivative and how far it may be off."""

    value: float
    error: float

    @property
    def is_known(self) -> bool:
        """Whether the estimate is of use: it is finite, and more than half of it is certain."""
        most = UNCERTAIN * abs(self.value) + UNCERTAIN_AT_ZERO
        return math.isfinite(self.value) and self.error <= most

    def agrees(self, other: float, slack: float = 0.0) -> bool:
        """Whether `other` may be the same number."""
        return abs(self.value - other) <= ERRORS * self.error + slack


UNKNOWN = Estimate(math.nan, math.inf)


def central(curve: Curve, step: float, noise: float) -> Estimate:
    """The derivative of `curve` at 0; `noise` is the relative rounding error of its values."""

    def slope(h: float) -> tuple[float, float]:
        right, left = curve(h), curve(-h)
        return (right - left) / (2 * h), max(abs(right), abs(left))

    return _extrapolated(slope, step, noise, order=2)


def one_sided(curve: Curve, step: float, noise: float, sign: int) -> Estimate:
    """The derivative of `curve` at 0 from the right (`sign` 1) or from the left (-1)."""
    start = curve(0.0)

    def slope(h: float) -> tuple[float, float]:
        value = curve(sign * h)
        return sign * (value - start) / h, max(abs(value), abs(start))

    return _extrapolated(slope, step, noise, order=1)


def _extrapolated(
    slope: Callable[[float], tuple[float, float]], step: float, noise: float, order: int
) -> Estimate:
    """The best entry of the Richardson table of `slope`, whose error falls as `h ** order`."""
    before: list[float] = []
    best = UNKNOWN
    h = step
    for _ in range(STEPS):
        first, scale = slope(h)
        if not math.isfinite(first):
            before = []
            h /= SHRINK
            continue
        row = [first]
        rounding = 2 * noise * scale / h
        if rounding >= best.error:
            break  # and it grows from here on
        for j, old in enumerate(before):
            power = SHRINK ** (order * (j + 1))
            row.append((power * row[j] - old) / (power - 1))
            error = max(abs(row[-1] - row[j]), abs(row[-1] - old)) + rounding
            if error < best.error:
                best = Estimate(row[-1], error)
        before = row
        h /= SHRINK
    return best
