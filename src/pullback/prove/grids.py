"""Tensors of expressions.

A `Grid` keeps its expressions in a table and is itself an integer tensor of places in that table.
So a view, a transpose or a concatenation of a grid is done by the op that does it to tensors, and
an op that pads with zeros pads with the place 0, where the table has the number 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.prove.scalars import Scalar, as_scalar, known_number


class Table:
    """Expressions by place; the first is the number 0."""

    def __init__(self) -> None:
        self.scalars = [known_number(0)]
        self.places = {self.scalars[0]: 0}

    def grid(self, scalars: Sequence[Scalar], shape: Sequence[int]) -> Grid:
        """A grid of this shape, from its expressions in memory order."""
        places = torch.tensor([self._place(scalar) for scalar in scalars], dtype=torch.int64)
        return Grid(places.reshape(tuple(shape)), self)

    def _place(self, scalar: Scalar) -> int:
        place = self.places.setdefault(scalar, len(self.scalars))
        if place == len(self.scalars):
            self.scalars.append(scalar)
        return place


class Grid:
    """A tensor of expressions."""

    __slots__ = ("places", "table")

    def __init__(self, places: Tensor, table: Table) -> None:
        self.places = places
        self.table = table

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""
        return tuple(self.places.shape)

    def scalars(self) -> list[Scalar]:
        """The expressions, in memory order."""
        return [self.table.scalars[place] for place in self.places.flatten().tolist()]

    @property
    def is_constant(self) -> bool:
        """Whether all elements are one known number."""
        scalars = set(self.scalars())
        return len(scalars) <= 1 and all(scalar.kind == "number" for scalar in scalars)

    # ---- element by element ----

    def map(self, function: Callable[..., Scalar], *others: Any) -> Grid:
        """`function` of each element and those of `others`, which are broadcast against it."""
        return elementwise(self.table, function, [self, *others])

    def __sub__(self, other: Grid) -> Grid:
        return self.map(lambda a, b: a - b, other)

    def __mul__(self, other: Grid) -> Grid:
        return self.map(lambda a, b: a * b, other)

    def __truediv__(self, other: Grid) -> Grid:
        return self.map(lambda a, b: a / b, other)

    # ---- along dimensions ----

    def reduced(
        self,
        dims: Sequence[int] | int | None,
        keepdim: bool,
        join: Callable[[Sequence[Scalar]], Scalar],
    ) -> Grid:
        """The elements along `dims` joined into one; along all dimensions if there are none."""
        rank = len(self.shape)
        chosen = [dims] if isinstance(dims, int) else list(dims or range(rank))
        along = {dim % rank for dim in chosen} if rank else set()
        kept = [dim for dim in range(rank) if dim not in along]
        rows = self.places.permute([*kept, *sorted(along)])
        rows = rows.reshape(-1, math.prod(self.shape[dim] for dim in along))
        joined = [join([self.table.scalars[place] for place in row]) for row in rows.tolist()]
        sizes = [1 if dim in along else size for dim, size in enumerate(self.shape)]
        shape = sizes if keepdim else [self.shape[dim] for dim in kept]
        return self.table.grid(joined, shape)

    def running(self, dim: int, join: Callable[[Sequence[Scalar]], Scalar]) -> Grid:
        """The elements along `dim` up to each place, joined into one."""
        if not self.shape:
            return self
        size = self.shape[dim]
        parts = [
            Grid(self.places.narrow(dim, 0, end), self.table).reduced(dim, True, join).places
            for end in range(1, size + 1)
        ]
        return Grid(torch.cat(parts, dim), self.table)


def elementwise(table: Table, function: Callable[..., Scalar], arguments: Sequence[Any]) -> Grid:
    """`function` of the elements of the grids among `arguments`, broadcast against each other."""
    where = [place for place, value in enumerate(arguments) if isinstance(value, Grid)]
    shape = torch.broadcast_shapes(*[arguments[place].shape for place in where])
    broad = [arguments[place].places.expand(shape) for place in where]
    filled = [_constant(value) for value in arguments]
    known: dict[tuple[int, ...], Scalar] = {}
    result = []
    for row in zip(*[each.flatten().tolist() for each in broad], strict=True):
        if row not in known:
            for place, element in zip(where, row, strict=True):
                filled[place] = table.scalars[element]
            known[row] = function(*filled)
        result.append(known[row])
    return table.grid(result, shape)


def _constant(value: Any) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return as_scalar(value) if is_number else value
