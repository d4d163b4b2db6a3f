"""What a pair of kernels is: one with a fault, and one that does the same as it should."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pair:
    """A fault, the Function that has it, and its sound counterpart."""

    name: str
    faulty: Any
    sound: Any
    # Inputs as an author would try them: no special sizes, layouts or values.
    inputs: Callable[[], tuple[Any, ...]]
    # The same in plain PyTorch.
    reference: Callable[..., Any]
    # The rules that name the fault; any of them will do.
    rules: tuple[str, ...]
    # Whether it shows on a GPU only: streams, races and tuning are not in Triton's interpreter.
    needs_gpu: bool = False


def values(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers of a fixed seed, as a leaf, on the GPU where there is one."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(*shape, generator=generator)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return drawn.to(device=device, dtype=dtype).requires_grad_()
