"""Forward mode for anything that has a backward: `jvp_of`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.capture.trees import flatten, unflatten
from pullback.derive.second import push

Push = Callable[[Sequence[Any], Sequence[Any]], tuple[Any, Any]]


def jvp_of(target: Any) -> Push:
    """As `pullback.jvp_of`, which says what it does."""
    is_class = isinstance(target, type) and issubclass(target, TorchFunction)
    program: Callable[..., Any] = target.apply if is_class else target

    def pushforward(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        try:
            return _by_rules(program, primals, tangents)
        except (NotImplementedError, RuntimeError):
            return _by_transposing(program, primals, tangents)

    return pushforward


def _by_rules(
    program: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """By PyTorch's forward mode, which needs a rule for every op and Function."""
    moving = [i for i, tangent in enumerate(tangents) if tangent is not None]
    jvp: Any = torch.func.jvp
    row = tuple(primals[i] for i in moving), tuple(tangents[i] for i in moving)
    outputs, pushed = jvp(lambda *row: program(*_with(primals, moving, row)), *row)
    return outputs, pushed


def _by_transposing(
    program: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """By two pulls: the backward, which is linear in its cotangents, pulled along once more."""
    places = [i for i, primal in enumerate(primals) if isinstance(primal, Tensor)]
    outputs = program(*primals)
    leaves, spec = flatten(outputs)

    def on_row(row: Sequence[Tensor]) -> list[Any]:
        return flatten(program(*_with(primals, places, row)))[0]

    pushed = push(on_row, [primals[i] for i in places], [tangents[i] for i in places])
    filled = [
        torch.zeros_like(leaf) if tangent is None and isinstance(leaf, Tensor) else tangent
        for leaf, tangent in zip(leaves, pushed, strict=True)
    ]
    return outputs, unflatten(filled, spec)


def _with(primals: Sequence[Any], places: Sequence[int], row: Sequence[Tensor]) -> list[Any]:
    """The primals, with those at `places` replaced by a row."""
    given = dict(zip(places, row, strict=True))
    return [given.get(place, primal) for place, primal in enumerate(primals)]
