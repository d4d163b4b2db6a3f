"""Ranks that belong together, and values that are one or differ between them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pullback.judge.tolerances import is_close

APART = 0.25  # of a value: how far those of two ranks are made to differ
SAME = 100  # roundings: the same numbers, computed by several ranks


def components(groups: Sequence[Sequence[int]], size: int) -> tuple[tuple[int, ...], ...]:
    """The ranks, joined where a group joins them; all of them where there is no group."""
    if not groups:
        return (tuple(range(size)),)
    owner = list(range(size))
    for group in groups:
        joined = {owner[rank] for rank in group}
        owner = [min(joined) if own in joined else own for own in owner]
    blocks = {own: tuple(r for r in range(size) if owner[r] == own) for own in owner}
    return tuple(blocks[own] for own in sorted(blocks))


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
