"""The same arguments with other numbers, for rules that compare two calls."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.judge.example import Example, can_differ


def other_values(example: Example, shift: int = 1) -> Example:
    """The example with other numbers of the same kind: each tensor's own entries, moved on.

    Signs, zeros and sizes stay as they are on the whole, so that forward still accepts them.
    """
    return example.map(lambda t: _moved(t, shift) if can_differ(t) else t, "other values")


def _moved(tensor: Tensor, shift: int) -> Tensor:
    moved = tensor.detach().flatten().roll(shift).reshape(tensor.shape) * 0.75
    return moved.to(memory_format=torch.contiguous_format)
