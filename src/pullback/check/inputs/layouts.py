"""The same values laid out otherwise in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Layout = Callable[[Tensor], "Tensor | None"]

# Around the values of a wider tensor stands this, which no gradient should ever contain.
FILL = 7.25e3


def transposed(tensor: Tensor) -> Tensor | None:
    """Stored with the dimensions reversed."""
    if tensor.dim() < 2:
        return None
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def swapped(tensor: Tensor) -> Tensor | None:
    """Stored with the two leading dimensions exchanged, each row still dense."""
    if tensor.dim() < 3:
        return None
    return tensor.transpose(0, 1).contiguous().transpose(0, 1)


def exchanged(tensor: Tensor) -> Tensor | None:
    """Stored with the dimensions 1 and 2 exchanged, as heads are."""
    if tensor.dim() < 4:
        return None
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def sliced(tensor: Tensor) -> Tensor | None:
    """Columns out of a wider tensor."""
    if tensor.dim() < 1:
        return None
    shape = (*tensor.shape[:-1], tensor.shape[-1] + 5)
    wide = torch.full(shape, _fill(tensor), dtype=tensor.dtype, device=tensor.device)
    part = wide[..., 2 : 2 + tensor.shape[-1]]
    part.copy_(tensor)
    return part


def stepped(tensor: Tensor) -> Tensor | None:
    """Every other element of a tensor twice as wide."""
    if tensor.dim() < 1:
        return None
    shape = (*tensor.shape, 2)
    wide = torch.full(shape, _fill(tensor), dtype=tensor.dtype, device=tensor.device)
    wide[..., 1] = tensor
    return wide[..., 1]


def offset(tensor: Tensor) -> Tensor | None:
    """Dense, but not from the start of its storage."""
    count = tensor.numel()
    wide = torch.full((count + 8,), _fill(tensor), dtype=tensor.dtype, device=tensor.device)
    part = wide[3 : 3 + count].view(tensor.shape)
    part.copy_(tensor)
    return part


def channels_last(tensor: Tensor) -> Tensor | None:
    """Channels last."""
    if tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if tensor.dim() == 5:
        return tensor.contiguous(memory_format=torch.channels_last_3d)
    return None


def expanded(tensor: Tensor) -> Tensor | None:
    """One element with stride 0 everywhere, as the gradient of a sum."""
    if tensor.dim() < 1 or tensor.numel() < 2:
        return None
    return tensor.flatten()[:1].clone().reshape((1,) * tensor.dim()).expand(tensor.shape)


def expanded_rows(tensor: Tensor) -> Tensor | None:
    """Each row one element with stride 0, as the gradient of a sum over the last dimension."""
    if tensor.dim() < 2 or tensor.numel() < 2:
        return None
    return tensor[..., :1].clone().expand(tensor.shape)


def expanded_columns(tensor: Tensor) -> Tensor | None:
    """One row with stride 0 between the rows, as the gradient of a sum over the first dimension."""
    if tensor.dim() < 2 or tensor.numel() < 2:
        return None
    return tensor[:1].clone().expand(tensor.shape)


def conjugated(tensor: Tensor) -> Tensor | None:
    """The conjugate view of the conjugate."""
    return tensor.conj().resolve_conj().clone().conj() if tensor.is_complex() else None


def negative_view(tensor: Tensor) -> Tensor | None:
    """The negative view of the negative: the imaginary part of a conjugate."""
    if tensor.is_complex() or not tensor.is_floating_point():
        return None
    if tensor.dtype not in (torch.float32, torch.float64):
        return None
    return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag


CONJUGATE = "a conjugate view"

LAYOUTS: dict[str, Layout] = {
    "transposed in memory": transposed,
    "with its leading dimensions exchanged in memory": swapped,
    "with its dimensions 1 and 2 exchanged in memory": exchanged,
    "sliced from a wider tensor": sliced,
    "every other element of a wider tensor": stepped,
    "dense from an offset of 3 in its storage": offset,
    "channels-last": channels_last,
    "expanded with stride 0": expanded,
    "expanded along the last dimension": expanded_rows,
    "expanded along the first dimension": expanded_columns,
    CONJUGATE: conjugated,
    "a negative view": negative_view,
}


def layouts_of(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensor in each layout that it can have, with the layout in words.

    An expanded one has other values: those of a few elements.
    """
    if tensor.layout != torch.strided or type(tensor) is not Tensor:
        return
    for label, change in LAYOUTS.items():
        made = change(tensor)
        if made is not None and not is_same_layout(made, tensor):
            yield label, made


def is_same_layout(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape lie in memory alike."""
    return (
        one.stride() == other.stride()
        and one.storage_offset() == other.storage_offset()
        and one.is_conj() == other.is_conj()
        and one.is_neg() == other.is_neg()
    )


def is_expanded(label: str) -> bool:
    """Whether a layout has stride 0, and so other values than the tensor it was made from."""
    return LAYOUTS.get(label) in (expanded, expanded_rows, expanded_columns)


def is_lazy(label: str) -> bool:
    """Whether a layout is a bit that other libraries do not know: a conjugate or negative view."""
    return LAYOUTS.get(label) in (conjugated, negative_view)


def dense(tensor: Tensor) -> Tensor:
    """The same values in the ordinary layout, with no lazy bits."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format)


def _fill(tensor: Tensor) -> float:
    return FILL if tensor.is_floating_point() or tensor.is_complex() else 0
