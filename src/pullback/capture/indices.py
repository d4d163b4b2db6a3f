"""Indices on a GPU: after one that is out of range, this process cannot use the GPU any more.

On a CPU it raises, and the caller draws another. So indices that were drawn for a GPU, or for
other sizes than they were given with, are tried on a CPU first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.capture.trees import flatten, is_tensor, unflatten


def try_indices(program: Callable[..., Any], args: Sequence[Any]) -> None:
    """Raise what `program` raises on a CPU, where there are indices for another device in `args`.

    A program that runs on that device alone raises, too: what its indices do cannot be known.
    """
    if not has_indices_elsewhere(args):
        return
    leaves, spec = flatten(tuple(args))
    row = [leaf.detach().cpu() if is_tensor(leaf) else leaf for leaf in leaves]
    with torch.no_grad():
        program(*unflatten(row, spec))


def has_indices_elsewhere(args: Sequence[Any]) -> bool:
    """Whether there are integers in `args` on a device that is no CPU."""
    tensors = [leaf for leaf in flatten(tuple(args))[0] if is_tensor(leaf)]
    return any(is_index(tensor) and tensor.device.type != "cpu" for tensor in tensors)


def is_index(tensor: Tensor) -> bool:
    """Whether a tensor holds integers."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
