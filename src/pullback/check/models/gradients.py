"""Slopes of a model's outputs along directions in its parameters and inputs, by differences.

One direction through everything tells whether any gradient is far off. Where one is, the Functions
inside are replaced by their forwards, one class after the other, which autograd differentiates:
where the gradient is right then, that class is at fault. A slope that is not certain says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.capture.patch import watching
from pullback.capture.seeds import normal
from pullback.check.models.program import Gradients, ModelProgram
from pullback.function.plain import plain_program
from pullback.judge.differences import UNKNOWN, Estimate, central
from pullback.judge.example import can_differ
from pullback.judge.reference import STEP, real_inner_product
from pullback.judge.tolerances import ERRORS

FAR = 0.05  # of a slope: gradients that are further off are wrong, not rounded
CERTAIN = 0.02  # of a slope: one that is less certain says nothing
SEEDS = (0, 1)  # of directions: the second asks once more


@dataclass(frozen=True, slots=True)
class SlopePair:
    """What autograd says of a slope, and what differences say."""

    claimed: float
    estimate: Estimate

    @property
    def is_certain(self) -> bool:
        """Whether differences tell the slope."""
        size = max(abs(self.estimate.value), abs(self.claimed))
        return self.estimate.is_known and self.estimate.error * ERRORS <= CERTAIN * size

    @property
    def is_wrong(self) -> bool:
        """Whether autograd's is another."""
        gap = abs(self.claimed - self.estimate.value)
        size = max(abs(self.estimate.value), abs(self.claimed))
        return self.is_certain and gap > FAR * size


class ModelSlopes:
    """A model, in float64 where it runs in that, seen along directions."""

    def __init__(self, program: ModelProgram) -> None:
        self.program = program
        self.wide = self._runs_wide()
        self.noise = torch.finfo(torch.float64).eps if self.wide else self._coarsest()

    def _runs_wide(self) -> bool:
        try:
            outputs = self.program(self.program.leaves(wide=True), wide=True)
        except Exception:  # a kernel, or a constant of the model, is of another dtype
            return False
        return all(o.dtype in (torch.float64, torch.complex128) for o in outputs if can_differ(o))

    def _coarsest(self) -> float:
        values = self.program.values.values()
        return max((torch.finfo(value.dtype).eps for value in values), default=1e-7)

    def gradients(self, plain: Sequence[type] = ()) -> Gradients:
        """The gradients by name, with the forwards of these classes in place of them."""
        leaves = self.program.leaves(wide=self.wide)
        with _as_plain(plain):
            return self.program.pulled(self.program(leaves, wide=self.wide), leaves)

    def along(self, names: Sequence[str], grads: Gradients, seed: int = 0) -> SlopePair | None:
        """The slope along one direction in these; None where there is nothing to move."""
        values = {n: t.detach() for n, t in self.program.leaves(wide=self.wide).items()}
        moved = {n: _direction(values[n], seed) for n in names if values[n].numel()}
        if not moved:
            return None
        claimed = sum(_inner(grads[name], along) for name, along in moved.items())

        def curve(step: float) -> float:
            shifted = {n: v + step * moved[n] if n in moved else v for n, v in values.items()}
            with torch.no_grad():
                outputs = self.program(shifted, wide=self.wide)
            return sum(map(_inner, *self.program.weighed(outputs)))

        try:
            step = max(STEP, self.noise ** (1 / 3))
            return SlopePair(claimed, central(curve, step, self.noise))
        except Exception:  # the model refuses other values
            return SlopePair(claimed, UNKNOWN)

    def changes(self, name: str) -> bool:
        """Whether the outputs change with a parameter or input at all."""
        values = {n: t.detach() for n, t in self.program.leaves(wide=self.wide).items()}
        with torch.no_grad():
            before = self.program(values, wide=self.wide)
            values[name] = values[name] + _direction(values[name], 0)
            after = self.program(values, wide=self.wide)
        return any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))

    def is_wrong(self, grads: Gradients) -> SlopePair | None:
        """The slope along everything that has a gradient, if it is wrong each time."""
        names = [name for name, grad in grads.items() if grad is not None]
        found = None
        for seed in SEEDS:
            found = self.along(names, grads, seed)
            if found is None or not found.is_wrong:
                return None
        return found

    def suspects(self, classes: Sequence[type]) -> list[type]:
        """The classes without whose backward the gradients are right; none where that is unknown.

        One class where that alone is enough, else all that must go.
        """
        for one in classes:
            if self._is_right_without([one]):
                return [one]
        if len(classes) > 1 and self._is_right_without(classes):
            return list(classes)
        return []

    def _is_right_without(self, classes: Sequence[type]) -> bool:
        try:
            grads = self.gradients(classes)
        except Exception:  # autograd cannot look into a forward
            return False
        names = [name for name, grad in grads.items() if grad is not None]
        slopes = [self.along(names, grads, seed) for seed in SEEDS]
        return all(s is not None and s.is_certain and not s.is_wrong for s in slopes)


def _direction(value: Tensor, seed: int) -> Tensor:
    """A random direction of the size of what it moves."""
    along = normal(value, seed)
    size = float(value.detach().abs().square().mean().sqrt())
    return along * (size if size > 0 and math.isfinite(size) else 0.1)


def _inner(one: Tensor | None, two: Tensor | None) -> float:
    if one is None or two is None:
        return 0.0
    dense = one if one.layout == torch.strided else one.to_dense()
    return float(real_inner_product(dense, two))


@contextmanager
def _as_plain(classes: Sequence[type]) -> Iterator[None]:
    """Inside, the forwards of these Functions are called without their backwards."""

    def handle(cls: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if cls in classes and not kwargs:
            return plain_program(cls)(*args)
        return call(*args, **kwargs)

    if not classes:
        yield
        return
    with watching(handle):
        yield
