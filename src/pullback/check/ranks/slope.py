"""How the outputs of all ranks change when one input of one rank moves.

A complex number counts as its two parts: an input moves along both, and `<output, cotangent>` is
the real one of PyTorch, `Re(sum(conj(cotangent) * output))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Slope:
    """How the outputs change when one input of one rank moves along each direction.

    `change[s][o]` has a row of real numbers for each direction, and so has `error`.
    """

    directions: Tensor
    change: tuple[tuple[Tensor, ...], ...]
    error: tuple[tuple[Tensor, ...], ...]

    @property
    def is_felt(self) -> bool:
        """Whether any output of any rank changes."""
        return any(bool(change.any()) for row in self.change for change in row)

    def along(self, gradient: Tensor | None) -> Tensor:
        """`<gradient, direction>` for each direction."""
        rows = len(self.directions)
        if gradient is None:
            return torch.zeros(rows, dtype=torch.float64)
        return real_parts(self.directions).reshape(rows, -1) @ real_parts(gradient).flatten()

    def pulled(self, rank: int, output: int, cotangent: Tensor | None) -> tuple[Tensor, Tensor]:
        """`<change of an output of a rank, cotangent>` for each direction, and its error."""
        rows = len(self.directions)
        change = self.change[rank][output].reshape(rows, -1)
        error = self.error[rank][output].reshape(rows, -1)
        if cotangent is None:
            return change.new_zeros(len(change)), change.new_zeros(len(change))
        flat = real_parts(cotangent).flatten()
        return change @ flat, error @ flat.abs()


def directions_of(value: Tensor, most: int) -> Tensor:
    """Directions that together move every entry: single entries, or some of them at once."""
    count = value.numel() * (2 if value.is_complex() else 1)
    rows = min(count, most)
    generator = torch.Generator().manual_seed(count)
    order = torch.randperm(count, generator=generator) if count > most else torch.arange(count)
    signs = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    found = torch.zeros(rows, count, dtype=torch.float64)
    for place, entry in enumerate(order.tolist()):
        found[place % rows, entry] = float(signs[entry]) if count > most else 1.0
    if value.is_complex():
        found = torch.view_as_complex(found.view(rows, -1, 2))
    return found.view(rows, *value.shape).to(value.dtype)


def real_parts(tensor: Tensor) -> Tensor:
    """The numbers of a tensor in double precision; complex ones as pairs, in one dimension more."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.detach().resolve_conj().to(torch.complex128))
    return tensor.detach().double()


def inner(one: Tensor, two: Tensor) -> Tensor:
    """`<one, two>`, as PyTorch pairs a value with its gradient."""
    return (real_parts(one) * real_parts(two)).sum()


def extrapolated(values: Tensor, steps: Sequence[float], noise: float) -> tuple[Tensor, Tensor]:
    """The derivative along each direction, from forwards at each step, and its error."""
    wide = real_parts(values).unflatten(0, (-1, len(steps)))
    coarse = (wide[:, 0] - wide[:, 1]) / (2 * steps[0])
    fine = (wide[:, 2] - wide[:, 3]) / (2 * steps[2])
    best = (4 * fine - coarse) / 3
    size = wide.norm(dim=-1, keepdim=True) if values.is_complex() else wide.abs()
    rounding = 8 * noise * size.amax(1) / abs(steps[2])
    return best, (best - fine).abs() + rounding
