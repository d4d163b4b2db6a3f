"""Examples with the same shapes and other values: zero, ties, negative, large, small, edges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pullback.check.inputs.values import is_mask
from pullback.judge.example import Example

Change = Callable[[Tensor], Tensor]
ALONE = 3  # so many inputs are also changed one at a time


def _some(tensor: Tensor) -> Tensor:
    """A mask of every third element, by rows and within them."""
    flat = torch.arange(tensor.numel(), device=tensor.device)
    return (flat % 3 == 1).reshape(tensor.shape)


def _offset(tensor: Tensor, by: float) -> Tensor:
    return tensor.abs() + by if by > 0 else by - tensor.abs()


ZERO: dict[str, Change] = {
    "all zero": torch.zeros_like,
    "some entries zero": lambda t: torch.where(_some(t), torch.zeros_like(t), t),
}
EDGES: dict[str, Change] = {
    "all ones": torch.ones_like,
    "whole numbers": lambda t: (t * 1.5).round(),
}
NEGATIVE: dict[str, Change] = {
    "all negative": lambda t: -t.abs(),
    "some signs turned": lambda t: torch.where(_some(t), -t, t),
}
FAR: dict[str, Change] = {
    "values times 4": lambda t: t * 4,
    "values times 20": lambda t: t * 20,
    "values above 30": lambda t: _offset(t, 30.0),
    "values below -30": lambda t: _offset(t, -30.0),
    "values times 1e3": lambda t: t * 1e3,
}
SMALL: dict[str, Change] = {
    "values times 0.05": lambda t: t * 0.05,
    "values times 1e-4": lambda t: t * 1e-4,
    "values times 1e-9": lambda t: t * 1e-9,
}
SQUARES = "values whose squares overflow"
HUGE: dict[str, Change] = {
    "values above 120": lambda t: _offset(t, 120.0),
    "values below -120": lambda t: _offset(t, -120.0),
    "values above 1000": lambda t: _offset(t, 1000.0),
    "values below -1000": lambda t: _offset(t, -1000.0),
    SQUARES: lambda t: t * _large(t),
}
FAINT: dict[str, Change] = {
    "values whose squares underflow": lambda t: t / _large(t),
}
INFINITE: dict[str, Change] = {
    "some entries -inf": lambda t: torch.where(_some(t), torch.full_like(t, -math.inf), t),
    "some entries inf": lambda t: torch.where(_some(t), torch.full_like(t, math.inf), t),
}
MISSING: dict[str, Change] = {
    "some entries NaN": lambda t: torch.where(_some(t), torch.full_like(t, math.nan), t),
}
LARGE = 1e4  # its exponential overflows, its square does not
SHIFTED: dict[str, Change] = {"values around 1e4": lambda t: t + 1e4}


def _large(tensor: Tensor) -> float:
    """A number whose square is beyond the dtype, and itself far from it."""
    limit = math.sqrt(torch.finfo(tensor.dtype).max)
    return limit * min(1e6, math.sqrt(limit) / 4)


def changed(example: Example, changes: dict[str, Change]) -> Iterator[Example]:
    """Each change on every real input that requires grad at once, then on each alone.

    Masks and constants keep their values: a target of 0 and 1 means nothing else.
    """
    real = [i for i in sorted(example.needs) if not example.args[i].is_complex()]
    real = [i for i in real if example.args[i].numel() and not _is_mask(example.args[i])]
    groups = [real] if len(real) < 2 else [real, *([i] for i in real[:ALONE])]
    for label, change in changes.items():
        for group in groups if real else []:
            made = example
            for i in group:
                words = label if len(group) == len(real) else f"argument {i}: {label}"
                value = change(example.args[i])
                if _is_size(example.args[i], example) and not bool((value > 0).all()):
                    value = example.args[i]
                made = made.put(i, value, words)
            yield made


def _is_size(tensor: Tensor, example: Example) -> bool:
    """Whether it is one positive number beside tensors: a bound, a width or a temperature."""
    is_one = tensor.numel() == 1 and bool((tensor > 0).all())
    return is_one and any(example.args[i].numel() > 1 for i in example.needs)


def emptied(example: Example) -> Iterator[Example]:
    """`ZERO` for every input, the complex ones too."""
    yield from changed(example, ZERO)
    whole = [i for i in sorted(example.needs) if example.args[i].is_complex()]
    for label, change in ZERO.items():
        for i in whole[:ALONE]:
            yield example.put(i, change(example.args[i]), f"argument {i}: {label}")


def _is_mask(tensor: Tensor) -> bool:
    """Whether a tensor holds both 0 and 1, and nothing else."""
    return is_mask(tensor) and tensor.numel() > 1 and bool(tensor.any()) and not bool(tensor.all())


def hidden(example: Example) -> Iterator[Example]:
    """Zeros and large numbers where a mask among the arguments hides an input."""
    masks = [example.args[k] for k in example.tensors if k not in example.needs]
    for mask in (m for m in masks if m.numel() and is_mask(m)):
        for i in sorted(example.needs):
            value = example.args[i]
            if value.is_complex() or not _covers(mask, value):
                continue
            shown = mask.expand(value.shape) != 0
            if bool(shown.all()):  # such a mask hides nothing yet
                shown = ~_some(value)
                at = next(k for k in example.tensors if example.args[k] is mask)
                if mask.shape != value.shape:
                    continue
                start = example.put(at, shown.to(mask.dtype), "with a mask")
            else:
                start = example
            for label, number in (("zero", 0.0), ("large", LARGE)):
                new = torch.where(shown, value, torch.full_like(value, number))
                yield start.put(i, new, f"argument {i} {label} where it is masked")


def _covers(mask: Tensor, value: Tensor) -> bool:
    """Whether a mask can be laid over a tensor."""
    if mask.dim() > value.dim():
        return False
    pairs = zip(reversed(mask.shape), reversed(value.shape), strict=False)
    return all(m in (1, v) for m, v in pairs)


def tied(example: Example) -> Iterator[Example]:
    """Values that are equal: within rows, rounded, and between two inputs of one shape."""
    rows = {
        "rounded, so that some are equal": lambda t: (t * 1.5).round(),
        "all entries of a row equal": lambda t: (
            t[..., :1].expand(t.shape).clone() if t.dim() else t.clone()
        ),
        "neighbours equal": _paired,
        "two rows equal": _with_equal_rows,
    }
    yield from changed(example, rows)
    real = sorted(example.needs)
    for k, i in enumerate(real):
        for j in real[k + 1 :]:
            one, two = example.args[i], example.args[j]
            if one.shape == two.shape and one.dtype == two.dtype:
                yield example.put(j, one.clone(), f"arguments {i} and {j} equal")
                some = torch.where(_some(one), one, two)
                yield example.put(j, some, f"arguments {i} and {j} equal in some entries")


def repeated(example: Example) -> Iterator[Example]:
    """Each square matrix in turn as a diagonal one of which two eigenvalues are equal."""
    for i in sorted(example.needs):
        value = example.args[i]
        if value.is_complex() or value.dim() < 2 or not value.shape[-1] == value.shape[-2] > 1:
            continue
        entries = torch.linspace(1, 2, value.shape[-1], dtype=value.dtype, device=value.device)
        entries[1] = entries[0]
        made = torch.diag_embed(entries.expand(value.shape[:-1])).clone()
        yield example.put(i, made, f"argument {i} diagonal, with two equal eigenvalues")


def _with_equal_rows(tensor: Tensor) -> Tensor:
    """The second row as the first one, which a list of points or samples may have."""
    made = tensor.clone()
    if tensor.dim() > 1 and tensor.shape[-2] > 1:
        made[..., 1, :] = tensor[..., 0, :]
    return made


def _paired(tensor: Tensor) -> Tensor:
    """Each odd entry of a row as the one before it."""
    if not tensor.dim():
        return tensor.clone()
    index = torch.arange(tensor.shape[-1], device=tensor.device)
    return tensor[..., index - index % 2]
