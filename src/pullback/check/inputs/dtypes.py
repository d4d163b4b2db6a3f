"""The example in other dtypes, and the dtypes that are coarser than one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.judge.example import Example, dtype_name

LOW = (torch.float16, torch.bfloat16)

# What a gradient of each dtype may have been rounded to by mistake, finest first.
COARSER = {
    torch.float64: (torch.float32, torch.float16, torch.bfloat16),
    torch.float32: (torch.float16, torch.bfloat16),
    torch.float16: (torch.bfloat16,),
}


def in_dtype(example: Example, dtype: torch.dtype) -> Example | None:
    """The example in `dtype`; None where it has no real floating tensor, or has complex ones."""
    tensors = [example.args[i] for i in example.differentiable]
    if not tensors or any(t.is_complex() for t in tensors):
        return None
    return example.to(dtype)


def dtype_of(example: Example) -> torch.dtype | None:
    """The dtype of the first differentiable input."""
    found = example.differentiable
    return example.args[found[0]].dtype if found else None


def coarser_of(tensor: Tensor) -> Iterator[tuple[str, torch.dtype]]:
    """The coarser dtypes in which every entry of the tensor could be written."""
    for dtype in COARSER.get(tensor.dtype, ()):
        if torch.equal(tensor.to(dtype).to(tensor.dtype), tensor):
            yield dtype_name(dtype), dtype
