"""Batching for anything: `vmap_of`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.capture.trees import flatten, unflatten
from pullback.errors import BatchError


def vmap_of(
    target: Any, *, in_dims: int | Sequence[int | None] = 0, out_dims: int = 0
) -> Callable[..., Any]:
    """As `pullback.vmap_of`, which says what it does."""
    is_class = isinstance(target, type) and issubclass(target, TorchFunction)
    program: Callable[..., Any] = target.apply if is_class else target

    def batched(*args: Any) -> Any:
        dims = _dims(in_dims, args)
        _require_one_size(args, dims)
        try:
            return torch.func.vmap(program, in_dims=dims, out_dims=out_dims)(*args)
        except (NotImplementedError, RuntimeError):
            return _loop(program, args, dims, out_dims)

    return batched


def _dims(in_dims: int | Sequence[int | None], args: Sequence[Any]) -> tuple[int | None, ...]:
    if isinstance(in_dims, int):
        return tuple(in_dims if isinstance(arg, Tensor) else None for arg in args)
    if len(in_dims) != len(args):
        raise BatchError(
            "`in_dims` must have one entry per argument",
            expected=f"{len(args)}",
            got=f"{len(in_dims)}, {tuple(in_dims)}",
        )
    return tuple(in_dims)


def _require_one_size(args: Sequence[Any], dims: Sequence[int | None]) -> None:
    sizes = {a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None}
    if len(sizes) != 1:
        raise BatchError(
            "the batched arguments must have batch dimensions of one size",
            expected="one size",
            got=f"{sorted(sizes)}",
        )


def _loop(
    program: Callable[..., Any], args: Sequence[Any], dims: Sequence[int | None], out_dims: int
) -> Any:
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    rows, spec = [], None
    for i in range(size):
        sample = [a if d is None else a.select(d, i) for a, d in zip(args, dims, strict=True)]
        leaves, spec = flatten(program(*sample))
        rows.append(leaves)
    if spec is None:
        raise BatchError("the batch must hold a sample to be run one by one", got="size 0")
    columns = zip(*rows, strict=True)
    return unflatten([_stacked(list(column), out_dims) for column in columns], spec)


def _stacked(column: list[Any], out_dims: int) -> Any:
    return torch.stack(column, out_dims) if isinstance(column[0], Tensor) else column[0]
