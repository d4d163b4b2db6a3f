"""A gradient that is wrong: of which input, where it is worst, and what it must be there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pullback.judge.tolerances import SHARE


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

    @property
    def is_seen_by_autograd(self) -> bool:
        """Whether the truth is PyTorch's own gradient of forward, and not one by differences."""
        if self.index is None or not self.want.numel():
            return False
        said = complex(self.want[self.index].item())
        return abs(said - self.expected) <= SHARE * abs(self.expected)


def index_of(flat: int, shape: Any) -> tuple[int, ...]:
    """The index of the `flat`-th element of a tensor of this shape."""
    found: list[int] = []
    for size in reversed(tuple(shape)):
        found.append(flat % size)
        flat //= size
    return tuple(reversed(found))


def flat_of(index: tuple[int, ...], shape: Any) -> int:
    """The number of the element at `index` of a tensor of this shape."""
    found = 0
    for k, size in zip(index, shape, strict=True):
        found = found * size + k
    return found
