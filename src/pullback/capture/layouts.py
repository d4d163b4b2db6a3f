"""How tensors lie in memory, and tensors that are laid out like others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """What a tensor is, but for its values, and whether it needs a gradient."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    needs: bool = False

    @classmethod
    def of(cls, tensor: Tensor, *, needs: bool | None = None) -> Layout:
        """That of `tensor`."""
        needs = tensor.requires_grad if needs is None else needs
        shape = tuple(tensor.shape)
        return cls(shape, tensor.stride(), tensor.dtype, tensor.device, needs)

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides that matter: those of dimensions that have more than one element."""
        return tuple(s if n > 1 else 0 for s, n in zip(self.stride, self.shape, strict=True))

    @property
    def overlaps(self) -> bool:
        """Whether several elements share one place in memory: such a layout is never written to."""
        return any(s == 0 and n > 1 for s, n in zip(self.stride, self.shape, strict=True))

    def empty(self) -> Tensor:
        """A tensor that is laid out so."""
        kind: Any = {"dtype": self.dtype, "device": self.device}
        return torch.empty_strided(self.shape, self.stride, **kind)

    def filled(self, tensor: Tensor) -> Tensor:
        """A tensor that is laid out so, with the numbers of `tensor`."""
        return self.empty().copy_(tensor)

    @staticmethod
    def copy_of(tensor: Tensor) -> Tensor:
        """A copy with the strides of `tensor`, which a clone of a slice has not."""
        return Layout.of(tensor).filled(tensor)


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
