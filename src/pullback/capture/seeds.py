"""Tensors like a given one, with numbers from a seed: PyTorch's own generators do not move.

Integers are never invented. An index, a length or an offset means something in another tensor, and
a kernel that trusts it reads and writes where it points: integers stay as they were given, and what
they may point into gets no smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pullback.capture.indices import is_index
from pullback.capture.layouts import in_order_of


def generator_for(tensor: Tensor, seed: int) -> torch.Generator:
    """A generator on the device of `tensor`."""
    return torch.Generator(tensor.device).manual_seed(seed)


def normal(like: Tensor, seed: int) -> Tensor:
    """Normal numbers in the shape of `like`."""
    generator = generator_for(like, seed)
    # Narrow dtypes cannot all be drawn.
    kind = like.dtype if like.is_complex() or like.dtype.itemsize > 2 else torch.float32
    drawn = torch.randn(like.shape, dtype=kind, generator=generator, device=like.device)
    return drawn.to(like.dtype)


def uniform_like(like: Tensor, seed: int, low: float, high: float) -> Tensor:
    """Numbers between `low` and `high` in the shape of `like`, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*like.shape, 2) if like.is_complex() else like.shape
    row = low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
    row = torch.view_as_complex(row) if like.is_complex() else row
    return row.to(device=like.device, dtype=like.dtype)


def moved_a_little(tensor: Tensor, seed: int) -> Tensor:
    """`tensor` with each element moved by up to a tenth of itself: what was valid stays valid."""
    if not tensor.is_floating_point() and not tensor.is_complex():
        return tensor
    noise = torch.rand(tensor.shape, generator=generator_for(tensor, seed), device=tensor.device)
    moved = in_order_of(tensor, tensor) * (1 + 0.2 * (noise - 0.5))
    return in_order_of(tensor, moved.to(tensor.dtype))


def picked(tensor: Tensor, shape: Sequence[int], seed: int) -> Tensor:
    """A tensor of another shape, its elements drawn from those of `tensor`."""
    flat = tensor.detach().reshape(-1)
    flat = flat if flat.numel() else tensor.new_ones(1)
    generator = generator_for(tensor, seed)
    count = math.prod(shape)
    picks = torch.randint(flat.numel(), (count,), generator=generator, device=tensor.device)
    return flat[picks].reshape(tuple(shape))


def like_given(tensor: Tensor, shape: Sequence[int], seed: int) -> Tensor:
    """A tensor of some shape like `tensor`: its numbers drawn, its bools repeated.

    Integers are those of `tensor` itself, and have its shape.
    """
    if tensor.is_floating_point() or tensor.is_complex():
        return picked(tensor, shape, seed)
    given = tensor.detach()
    if tuple(shape) == tuple(given.shape):
        return given
    if is_index(given):
        raise ValueError(f"integers of shape {list(given.shape)} have no other shape")
    if not given.numel():
        return given.new_ones(tuple(shape))
    for dim, size in enumerate(shape):
        places = torch.arange(size, device=given.device) % given.shape[dim]
        given = given.index_select(dim, places)
    return given
