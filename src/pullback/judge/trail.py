"""Whether the outputs of a call are computed from an input by PyTorch ops.

A gradient that ends at a `detach` ends there on purpose. One that ends where the values went
through NumPy, or through a kernel that was only given a pointer, ends by accident.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pullback.function.isolation import seeded
from pullback.function.modes import DispatchMode
from pullback.judge.example import tensors_in


class _Trail(DispatchMode):
    """Follows tensors through ops, by their memory."""

    def __init__(self, start: list[Tensor]) -> None:
        super().__init__()
        self._made = list(start)  # kept, so that no other tensor gets their memory
        self._known = {_memory(tensor) for tensor in start}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.leads_to(tensors_in([*args, *(kwargs or {}).values()])):
            made = tensors_in(result)
            self._made += made
            self._known.update(_memory(tensor) for tensor in made)
        return result

    def leads_to(self, tensors: list[Tensor]) -> bool:
        return any(_memory(tensor) in self._known for tensor in tensors)


def is_followed(call: Callable[..., Any], args: tuple[Any, ...], position: int) -> bool:
    """Whether PyTorch sees how an output of `call` comes from one of its arguments."""
    trail = _Trail(tensors_in(args[position]))
    with torch.no_grad(), seeded(), trail:
        outputs = tensors_in(call(*args))
    return trail.leads_to(outputs)


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
