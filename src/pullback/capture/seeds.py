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


def in_order_of(like: Tensor, values: Tensor) -> Tensor:
    """A leaf with these values, its dimensions in memory in the order of those of `like`.

    It begins in its memory where `like` does.
    """
    order = order_of(like.stride())
    empty = torch.empty_permuted(values.shape, order, dtype=like.dtype, device=like.device)
    if offset := like.storage_offset():
        memory = empty.new_zeros(offset + empty.numel()).untyped_storage()
        empty.set_(memory, offset, empty.size(), empty.stride())
    return empty.copy_(values.detach())


def strided_copy(tensor: Tensor, *, is_leaf: bool = True) -> Tensor:
    """A copy that lies in its memory as the original does, gaps and repeated numbers included.

    Where other numbers than repeated ones (`expand`) share a place, only the order is the same.
    One that is no leaf requires grad, and may be changed in place.
    """
    once = tensor.detach()
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            once = once.narrow(dim, 0, 1)
    reach = _reach(once)
    if reach is None:
        copy = in_order_of(once, once)
        return (copy if is_leaf else copy.requires_grad_().clone()).expand(tensor.shape)
    memory = once.new_zeros(once.storage_offset() + reach)
    memory.as_strided(once.shape, once.stride(), once.storage_offset()).copy_(once)
    memory = memory if is_leaf else memory.requires_grad_().clone()
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _reach(tensor: Tensor) -> int | None:
    """How many elements of memory lie between the first and the last; None if any share a place."""
    steps = sorted(
        (step, n) for step, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1
    )
    last = 0
    for step, count in steps:
        if step <= last:
            return None
        last += step * (count - 1)
    return last + 1 if tensor.numel() else None


def memory_order(strides: Sequence[int]) -> list[int]:
    """Dimensions as they lie in memory, the outermost first; of equal strides, the first first."""
    return sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim))


def in_memory_order(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """A copy without gaps, its dimensions in the order of `strides` in memory."""
    order, kind = memory_order(strides), {"dtype": tensor.dtype, "device": tensor.device}
    return torch.empty_permuted(tensor.shape, order, **kind).copy_(tensor)  # type: ignore[arg-type]


def order_of(strides: Sequence[int]) -> list[int]:
    """Dimensions as they lie in memory, the outermost first.

    One that repeats its numbers (`expand`) lies nowhere: it keeps its place, as in what PyTorch's
    ops make of such a tensor.
    """
    spread = [dim for dim, stride in enumerate(strides) if stride]
    moved = dict(zip(spread, sorted(spread, key=lambda dim: -strides[dim]), strict=True))
    return [moved.get(dim, dim) for dim in range(len(strides))]


def dense_cotangent(cotangent: Tensor, order: Sequence[int]) -> Tensor:
    """`cotangent` without gaps, its dimensions in this order in memory, the outermost first."""
    if list(order) == list(range(len(order))):
        return cotangent.contiguous()
    if cotangent.permute(*order).is_contiguous():
        return cotangent
    return cotangent.permute(*order).contiguous().permute(*_inverse(order))


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(d) for d in range(len(order))]
