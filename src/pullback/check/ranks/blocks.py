"""Ranks that belong together, and values that are one or differ between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from pullback.judge.tolerances import is_close

APART = 0.25  # of a value: how far those of two ranks are made to differ
SAME = 100  # roundings: the same numbers, computed by several ranks
DIMENSIONS = 3  # of a mesh of ranks, whose dimensions are looked at together

Blocks = tuple[tuple[int, ...], ...]  # every rank in one of them


def components(groups: Sequence[Sequence[int]], size: int) -> Blocks:
    """The ranks, joined where a group joins them; all of them where there is no group."""
    if not groups:
        return (tuple(range(size)),)
    owner = list(range(size))
    for group in groups:
        joined = {owner[rank] for rank in group}
        owner = [min(joined) if own in joined else own for own in owner]
    blocks = {own: tuple(r for r in range(size) if owner[r] == own) for own in owner}
    return tuple(blocks[own] for own in sorted(blocks))


def mesh_blocks(groups: Sequence[tuple[int, ...]], size: int) -> tuple[Blocks, ...]:
    """The blocks by all groups, then by those of fewer dimensions of a mesh, and of one.

    Groups of one size that have no rank in common are of one dimension.
    """
    dimensions: list[list[tuple[int, ...]]] = []
    for group in sorted(set(groups), key=lambda one: (-len(one), one)):
        for dimension in dimensions:
            is_apart = not any(set(group) & set(other) for other in dimension)
            if is_apart and len(group) == len(dimension[0]):
                dimension.append(group)
                break
        else:
            dimensions.append([group])
    most = len(dimensions) if len(dimensions) <= DIMENSIONS else 1
    together = [
        components([group for dimension in some for group in dimension], size)
        for count in range(most, 0, -1)
        for some in combinations(dimensions, count)
    ]
    return tuple(dict.fromkeys([components(groups, size), *together]))


def block_of(blocks: Blocks, rank: int) -> tuple[int, ...]:
    """The ranks that a rank is with."""
    return next(block for block in blocks if rank in block)


def is_same_everywhere(values: Sequence[Tensor]) -> bool:
    """Whether several ranks were given the very same."""
    first = values[0]
    return all(v.shape == first.shape and torch.equal(v, first) for v in values[1:])


def is_one_value(values: Sequence[Tensor | None]) -> bool:
    """Whether several ranks have the same, but for rounding."""
    first = values[0]
    return all(
        (v is None) == (first is None)
        and (v is None or first is None or (v.shape == first.shape and is_close(v, first, SAME)))
        for v in values[1:]
    )


def made_apart(value: Tensor, rank: int, position: int) -> Tensor:
    """A value of the same signs, a share of itself away."""
    generator = torch.Generator().manual_seed(1 + 97 * rank + 13 * position)
    factor = 1 + APART * (2 * torch.rand(value.shape, generator=generator).double() - 1)
    return (value * factor).to(value.dtype)
