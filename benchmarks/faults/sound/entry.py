"""What one sound function is: the function, ordinary inputs, and the same in plain torch.

Each module of this folder holds a table `SOUND`, name to `Sound`, and `CASES` made from it. The
tests compare every entry with its `plain` twin, so that the benchmark can call it sound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.faults import case
from benchmarks.faults.case import Case


@dataclass(frozen=True)
class Sound:
    """One function that is right, and what its author promises about it."""

    target: Any  # a Function class, a callable, or a custom op
    inputs: Callable[[], tuple[Any, ...]]  # ordinary arguments, new tensors at each call
    plain: Callable[..., Any]  # the same function by torch's own autograd
    order: int = 2  # how often it may be differentiated; at 1 the next time must be refused
    convention: bool = True  # at kinks it chooses the subgradient that torch chooses
    low: bool = True  # it takes bfloat16
    dirty: bool = False  # it writes into an input, and marks that
    surrogate: bool = False  # its gradient is declared to be another function's


def cases_of(table: dict[str, Sound]) -> list[Case]:
    """The entries of a table as cases of the benchmark."""
    return [
        Case(name, entry.target, entry.inputs, reference=entry.plain)
        for name, entry in table.items()
    ]


# ---- inputs, all in float64 ----


def real(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, a leaf that requires grad."""
    values = case.double(*(shape or (1,)), seed=1000 + seed, grad=False)
    return values.reshape(shape).requires_grad_()


def imaginary(*shape: int, seed: int = 0) -> Tensor:
    """Complex normal numbers, a leaf that requires grad."""
    return case.normal(*shape, seed=2000 + seed, dtype=torch.complex128)


def positive(*shape: int, seed: int = 0) -> Tensor:
    """Numbers between 0.5 and 1.5, a leaf that requires grad."""
    return case.positive(*shape, seed=3000 + seed, dtype=torch.float64)


def whole(*shape: int, high: int, seed: int = 0) -> Tensor:
    """Integers from 0 to `high` - 1; some are repeated."""
    return case.integers(high, *shape, seed=4000 + seed)


def coins(*shape: int, seed: int = 0) -> Tensor:
    """Booleans, about one in three false."""
    rng = torch.Generator().manual_seed(5000 + seed)
    return torch.rand(shape, generator=rng) > 0.33
