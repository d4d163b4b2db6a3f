"""What is remembered of the tensors that a program was captured with: enough to draw such again.

The tensors themselves are not kept: they may be large, and belong to the caller. Integers and bools
are, in the narrowest dtype that holds them: others would point elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.fake import is_fake
from pullback.capture.trees import tensors_in

_NARROW = (torch.int8, torch.int16, torch.int32)
FEW = 64
"""Up to so many elements, the values themselves are remembered."""


@dataclass(frozen=True, slots=True)
class Like:
    """One tensor: what it was, between which finite values it lay, and the values if few.

    `whole` holds its integers, or bools.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    low: float
    high: float
    values: Any = None
    whole: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def numel(self) -> int:
        """How many elements it had."""
        return math.prod(self.shape)


def likes_of(args: Sequence[Any]) -> tuple[Like, ...]:
    """What the tensors among `args` are like, in order."""
    return tuple(like_of(tensor) for tensor in tensors_in(tuple(args)))


def like_of(tensor: Tensor) -> Like:
    """What `tensor` is like; one whose values cannot be read is taken to lie between -1 and 1."""
    shape, device = tuple(int(size) for size in tensor.shape), str(tensor.device)
    unread = Like(shape, tensor.dtype, device, -1.0, 1.0)
    if is_fake(tensor) or tensor.is_meta or tensor.layout != torch.strided:
        return unread
    try:
        with torch.no_grad():
            real = tensor.detach()
            values = real.tolist() if real.numel() <= FEW else None
            flat = _comparable(real)
            if not flat.numel():
                return replace(unread, values=values)
            low, high = (one.item() for one in flat.aminmax())
            whole = _whole(real, low, high)
            return Like(shape, tensor.dtype, device, float(low), float(high), values, whole)
    except (RuntimeError, NotImplementedError, TypeError):  # a subclass that keeps to itself
        return unread


def like_of_leaf(leaf: Any) -> Any:
    """What `leaf` is like if it is a tensor, else `leaf` itself: to remember whole arguments."""
    return like_of(leaf) if isinstance(leaf, Tensor) else leaf


def drawn(like: Like, seed: int = 0) -> Tensor:
    """A tensor like the one remembered: its values if they are, else others between them.

    Integers are always the remembered ones: cropped or repeated where `like` was given another
    shape, zeros where they could not be read.
    """
    if like.values is not None:
        return torch.tensor(like.values, dtype=like.dtype, device=like.device).reshape(like.shape)
    generator = torch.Generator().manual_seed(seed)
    if like.dtype.is_floating_point or like.dtype.is_complex:
        shape = (*like.shape, 2) if like.dtype.is_complex else like.shape
        row = torch.rand(shape, generator=generator, dtype=torch.float64)
        row = like.low + (like.high - like.low) * row
        row = torch.view_as_complex(row) if like.dtype.is_complex else row
    else:
        row = torch.zeros(like.shape) if like.whole is None else _fitted(like.whole, like.shape)
    return row.to(device=like.device, dtype=like.dtype)


def _whole(tensor: Tensor, low: float, high: float) -> Tensor | None:
    """A copy of integers or bools on the CPU, as narrow as they are; None for other numbers."""
    if tensor.is_floating_point() or tensor.is_complex():
        return None
    ranges = ((dtype, torch.iinfo(dtype)) for dtype in _NARROW)
    fits = (dtype for dtype, of in ranges if of.min <= low and high <= of.max)
    return tensor.to("cpu", next(fits, tensor.dtype), copy=True)


def _fitted(whole: Tensor, shape: Sequence[int]) -> Tensor:
    """Integers in a shape, cropped or repeated: no others than there were."""
    for dim, size in enumerate(shape if whole.dim() == len(shape) else ()):
        whole = whole.index_select(dim, torch.arange(size) % whole.shape[dim])
    return whole if whole.shape == tuple(shape) else whole.flatten()[:1].expand(tuple(shape))


def _comparable(tensor: Tensor) -> Tensor:
    """The finite numbers in `tensor`, in a row, in a dtype that has an order."""
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = flat.flatten()
    if not flat.is_floating_point():
        return flat.to(torch.int64)
    flat = flat if flat.dtype == torch.float64 else flat.float()
    return flat[flat.isfinite()]
