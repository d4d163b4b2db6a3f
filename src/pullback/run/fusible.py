"""Ops in a form that a GPU fuses with what is around them.

Inductor fills and scatters in kernels of their own, each of which passes over the whole tensor. A
scatter of one element to each row is a choice for every element, and part of the next kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def fusible(row: Sequence[Any]) -> Mapping[Any, Callable[..., Any]]:
    """What ops are to be made of, for arguments like `row`; nothing where scatters are fast."""
    on_gpu = any(isinstance(value, Tensor) and value.is_cuda for value in row)
    return {torch.ops.aten.scatter.src: scatter_src} if on_gpu else {}


def scatter_src(into: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """`aten.scatter.src` where each row gets one element; otherwise it stays what it is."""
    if not into.dim():
        return NotImplemented
    dim %= into.dim()
    one_each = [1 if d == dim else size for d, size in enumerate(into.shape)]
    if list(index.shape) != one_each or list(src.shape) != one_each:
        return NotImplemented
    across = [size if d == dim else 1 for d, size in enumerate(into.shape)]
    places = torch.arange(into.shape[dim], dtype=index.dtype, device=index.device).view(across)
    return torch.where(places == index, src, into)
