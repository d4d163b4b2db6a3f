"""The same arguments with other numbers, for rules that compare two calls."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.capture.seeds import uniform_like
from pullback.judge.example import Example, can_differ, tensors_in


def other_values(example: Example, shift: int = 1) -> Example:
    """The example with other numbers of the same kind: each tensor's own entries, moved on.

    Signs, zeros and sizes stay as they are on the whole, so that forward still accepts them; where
    one number stands everywhere, others are drawn.
    """
    return example.map(lambda t: _moved(t, shift) if can_differ(t) else t, "other values")


def varied(example: Example) -> Example:
    """The example with numbers drawn where a tensor holds one number everywhere.

    A state of zeros hides whether it was added, and a copy from what only looks like one.
    """
    label = f"{example.label}, " if example.label else ""
    made = example.map(_drawn, f"{label}numbers drawn for constant ones")
    pairs = zip(tensors_in(made.args), tensors_in(example.args), strict=True)
    return made if any(a is not b for a, b in pairs) else example


def _drawn(tensor: Tensor) -> Tensor:
    if not can_differ(tensor) or not is_constant(tensor):
        return tensor
    return unequal_numbers(tensor)


def unequal_numbers(tensor: Tensor) -> Tensor:
    """Other numbers about the one that a tensor holds everywhere."""
    number = tensor.detach().flatten()[0]
    if not number:
        return uniform_like(tensor, 5, -1.0, 1.0)
    return number * uniform_like(tensor, 5, 0.5, 1.5)


def is_constant(tensor: Tensor) -> bool:
    """Whether a tensor of several numbers holds one everywhere."""
    flat = tensor.detach().flatten()
    return flat.numel() > 1 and bool((flat == flat[0]).all())


def _moved(tensor: Tensor, shift: int) -> Tensor:
    tensor = _drawn(tensor)
    moved = tensor.detach().flatten().roll(shift).reshape(tensor.shape) * 0.75
    return moved.to(memory_format=torch.contiguous_format)
