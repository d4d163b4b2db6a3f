"""What is kept of the tensors that a program was captured with: enough to draw similar ones.

The tensors themselves are not kept: they may be large, and belong to the caller. Of each there is a
copy of its first elements, since a program may mean something by them that no range shows: a
triangle, a matrix that has an inverse. Integers and bools are kept whole, in the narrowest dtype
that holds them: others would point elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.fake import is_fake
from pullback.capture.seeds import uniform_like
from pullback.capture.trees import tensor_leaves

KEPT_ELEMENTS = 64
"""Up to so many elements, the values themselves are remembered."""

SAMPLED = 1 << 14
"""Of larger tensors, a corner of so many elements is remembered."""

_NARROW = (torch.int8, torch.int16, torch.int32)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: what it was, between which finite values it lay, and the values if few.

    `sample` is a copy of it, or of a corner of it; of integers and bools, all of them.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str
    low: float
    high: float
    values: Any = None
    sample: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def numel(self) -> int:
        """How many elements it had."""
        return math.prod(self.shape)


def tensor_specs_of(args: Sequence[Any]) -> tuple[TensorSpec, ...]:
    """What the tensors among `args` are like, in order."""
    return tuple(tensor_spec_of(tensor) for tensor in tensor_leaves(tuple(args)))


def tensor_spec_of(tensor: Tensor) -> TensorSpec:
    """What `tensor` is like; one whose values cannot be read is taken to lie between -1 and 1."""
    shape, device = tuple(int(size) for size in tensor.shape), str(tensor.device)
    unread = TensorSpec(shape, tensor.dtype, device, -1.0, 1.0)
    if is_fake(tensor) or tensor.is_meta or tensor.layout != torch.strided:
        return unread
    try:
        with torch.no_grad():
            real = tensor.detach()
            values = real.tolist() if real.numel() <= KEPT_ELEMENTS else None
            flat = _comparable(real)
            if not flat.numel():
                return replace(unread, values=values, sample=_corner(real))
            low, high = (one.item() for one in flat.aminmax())
            is_smooth = real.is_floating_point() or real.is_complex()
            sample = _corner(real) if is_smooth else _narrowed(real, low, high)
            return TensorSpec(shape, tensor.dtype, device, float(low), float(high), values, sample)
    except (RuntimeError, NotImplementedError, TypeError):  # a subclass that keeps to itself
        return unread


def tensor_spec_of_leaf(leaf: Any) -> Any:
    """What `leaf` is like if it is a tensor, else `leaf` itself: to remember whole arguments."""
    return tensor_spec_of(leaf) if isinstance(leaf, Tensor) else leaf


def drawn_like(like: TensorSpec, seed: int = 0) -> Tensor:
    """A tensor like the one remembered: its values if they are, else others between them.

    Integers are always the remembered ones: cropped or repeated where `like` was given another
    shape, zeros where they could not be read.
    """
    if like.values is not None:
        return torch.tensor(like.values, dtype=like.dtype, device=like.device).reshape(like.shape)
    if like.dtype.is_floating_point or like.dtype.is_complex:
        empty = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        return uniform_like(empty, seed, like.low, like.high)
    row = torch.zeros(like.shape) if like.sample is None else _cropped(like.sample, like.shape)
    return row.to(device=like.device, dtype=like.dtype)


def fitted(like: TensorSpec, shape: Sequence[int], seed: int = 0) -> Tensor:
    """A tensor of another shape: the sample of one, cropped or repeated. It has no other values."""
    sample = drawn_like(like, seed) if like.sample is None else like.sample
    if not sample.numel():
        return sample.new_ones(tuple(shape)).to(device=like.device, dtype=like.dtype)
    return _cropped(sample, shape).to(device=like.device, dtype=like.dtype, copy=True)


def _cropped(sample: Tensor, shape: Sequence[int]) -> Tensor:
    """Numbers in a shape, cropped or repeated: no others than there were; zeros if none were."""
    if not sample.numel():
        return sample.new_zeros(tuple(shape))
    for dim, size in enumerate(shape if sample.dim() == len(shape) else ()):
        if sample.shape[dim] != size:
            places = torch.arange(size, device=sample.device) % sample.shape[dim]
            sample = sample.index_select(dim, places)
    return sample if sample.shape == tuple(shape) else sample.flatten()[0].expand(tuple(shape))


def _narrowed(tensor: Tensor, low: float, high: float) -> Tensor:
    """A copy of integers or bools on the CPU, as narrow as they are."""
    ranges = ((dtype, torch.iinfo(dtype)) for dtype in _NARROW)
    fits = (dtype for dtype, of in ranges if of.min <= low and high <= of.max)
    return tensor.to("cpu", next(fits, tensor.dtype), copy=True)


def _corner(tensor: Tensor) -> Tensor:
    """A copy of `tensor`, or of a corner of it that has few elements."""
    while tensor.numel() > SAMPLED:
        dim = max(range(tensor.dim()), key=lambda d: tensor.shape[d])
        tensor = tensor.narrow(dim, 0, (tensor.shape[dim] + 1) // 2)
    return tensor.clone(memory_format=torch.contiguous_format)


def _comparable(tensor: Tensor) -> Tensor:
    """The finite numbers in `tensor`, in a row, in a dtype that has an order."""
    flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = flat.flatten()
    if not flat.is_floating_point():
        return flat.to(torch.int64)
    flat = flat if flat.dtype == torch.float64 else flat.float()
    return flat[flat.isfinite()]
