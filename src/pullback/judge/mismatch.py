"""How far a gradient is from what it must be, and where it is worst."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Mismatch:
    """A gradient that differs: of which input, where it is worst, what it must be there.

    `wrong` of `total` entries differ. `index` is None where there is no gradient at all.
    """

    name: str
    position: int
    index: tuple[int, ...] | None
    expected: complex | float
    got: complex | float | None
    wrong: int
    total: int
    want: Tensor
    have: Tensor | None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What may differ: a share of each entry, and a share of the largest one."""

    relative: float
    scaled: float
    floor: float = 0.0

    def allowed(self, want: Tensor) -> Tensor:
        """How far each entry of a gradient may be from `want`."""
        size = want.abs()
        finite = size[torch.isfinite(size)]
        scale = float(finite.max()) if finite.numel() else 0.0
        return self.relative * size + (self.scaled * scale + self.floor)


def tolerance_for(eps: float, cotangent: float) -> Tolerance:
    """The tolerance for a gradient computed with relative rounding error `eps`.

    `cotangent` is the size of the largest entry of the cotangents: where the true gradient is zero,
    rounding leaves a residue of that order. What is beyond the tolerance is doubted, not yet wrong.
    """
    relative = min(200 * eps, 0.05 + 8 * eps)
    scaled = min(60 * eps, 0.02 + 2 * eps)
    return Tolerance(max(1e-5, relative), max(1e-12, scaled), scaled * cotangent)


def excess_of(have: Tensor | None, want: Tensor, tolerance: Tolerance) -> Tensor:
    """By how much each entry is beyond the tolerance (<= 0 is fine); entries that are not finite in
    `want` say nothing.
    """
    wide = torch.complex128 if want.is_complex() else torch.float64
    want = want.detach().to(wide)
    have = torch.zeros_like(want) if have is None else have.detach().to(wide)
    if have.shape != want.shape:
        return torch.full_like(want, math.inf, dtype=torch.float64)
    excess = (have - want).abs() - tolerance.allowed(want)
    excess = torch.where(torch.isfinite(have.abs()), excess, math.inf)
    return torch.where(torch.isfinite(want.abs()), excess, -1.0)


def index_of(flat: int, shape: Any) -> tuple[int, ...]:
    """The index of the `flat`-th element of a tensor of this shape."""
    found: list[int] = []
    for size in reversed(tuple(shape)):
        found.append(flat % size)
        flat //= size
    return tuple(reversed(found))
