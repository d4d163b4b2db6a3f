"""Derivatives of the real forward along directions in one input, each with its error.

A direction is an element or a random one; the step follows from the size of the numbers that move,
and where a large step is inaccurate a smaller one is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pullback.capture.seeds import normal
from pullback.judge.differences import Estimate
from pullback.judge.example import Example, wide_of
from pullback.judge.reference import STEP, Reference
from pullback.judge.tolerances import ERRORS, KINK

DIRECTIONS = 4  # random ones for each input
GUARDS = 1e-6  # inputs below this are in the reach of the constants that guard a division


@dataclass(slots=True)
class Slopes:
    """Forward around an example, seen from one of its inputs."""

    reference: Reference
    exact: Example
    cotangents: tuple[Tensor | None, ...]
    position: int
    # The part of a step that inputs may take, where they keep a relation such as symmetry.
    tangent: Callable[[Tensor], Tensor] | None = field(default=None, kw_only=True)

    def slope(self, along: Tensor) -> tuple[Estimate, float]:
        """The derivative along a direction, and the step that showed it."""
        for step in self.steps(along):
            direction = {self.position: along}
            estimate = self.reference.slope(self.exact, self.cotangents, direction, step)
            if estimate.is_known:
                break
        return estimate, step

    def sides(self, along: Tensor, step: float) -> tuple[Estimate, Estimate]:
        """The derivatives from the left and from the right along a direction."""
        return self.reference.sides(self.exact, self.cotangents, {self.position: along}, step)

    def steps(self, along: Tensor) -> list[float]:
        """Steps to try: larger for coarse or large numbers, then such as small numbers need."""
        moved = self.exact.args[self.position].detach().cpu().abs()[along != 0]
        size = float(moved.max()) if moved.numel() else 0.0
        usual = max(STEP, self.reference.noise_of(self.exact) ** (1 / 3))
        steps = [usual * max(1.0, size)] if math.isfinite(size) else [usual]
        if size > 1:
            steps.append(usual)
        elif GUARDS < size < usual:
            steps.append(0.05 * size)
        return steps

    def entry(self, flat: int, certain: float | None = None) -> complex | float | None:
        """The true gradient at one element, by differences; None where they are not conclusive.

        With `certain` also None at a kink, and where that share of it may be wrong.
        """
        parts = []
        for unit in self.units(flat):
            estimate, step = self.slope(unit)
            if not estimate.is_known:
                return None
            if certain is not None and (
                estimate.error > certain * max(1.0, abs(estimate.value))
                or self.has_kink(unit, step)
            ):
                return None
            parts.append(estimate.value)
        return parts[0] if len(parts) == 1 else complex(*parts)

    def units(self, flat: int) -> list[Tensor]:
        """The directions along one element: one, or the real and the imaginary."""
        value = wide_of(self.exact.args[self.position])
        unit = torch.zeros(value.shape, dtype=value.dtype)
        unit.view(-1)[flat] = 1
        unit = unit if self.tangent is None else self.tangent(unit)
        return [unit, unit * 1j] if value.is_complex() else [unit]

    def directions(self, value: Tensor) -> Iterator[Tensor]:
        """Random directions, whose largest entry is one."""
        for seed in range(DIRECTIONS):
            along = normal(wide_of(value).cpu(), seed)
            along = along if self.tangent is None else self.tangent(along)
            yield along / along.abs().max().clamp_min(1e-3)

    def agrees_elsewhere(self, along: Tensor, step: float, mine: float, allowed: float) -> bool:
        """Whether differences with another step agree with the user."""
        direction = {self.position: along}
        others = [other for other in self.steps(along) if other != step]
        found = [self.reference.slope(self.exact, self.cotangents, direction, s) for s in others]
        return any(e.is_known and e.agrees(mine, allowed) for e in found)

    def has_kink(self, along: Tensor, step: float | None = None) -> bool:
        """Whether the sides disagree along a direction, or one of them is unknown.

        `step` is the one that showed the slope there, where that is known.
        """
        left, right = self.sides(along, self.slope(along)[1] if step is None else step)
        if not (left.is_known and right.is_known):
            return True
        return not left.agrees(right.value, ERRORS * right.error + KINK * abs(right.value))
