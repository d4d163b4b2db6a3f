"""Convolutions: each gradient by a call of its own, which has a name in `torch.nn.grad`."""

from __future__ import annotations

from operator import getitem
from typing import Any

from pullback.graph.rewrite import Table, rule
from pullback.graph.values import Value, aten


@rule(
    "convolution-backward",
    aten.convolution_backward.default,
    why="three gradients that do not depend on one another; the sum for the bias rounds by itself",
)
def convolution_backward(node: Value) -> Any:
    """One call for the input, one for the weight, and a sum for the bias."""
    g, x, w, _, *settings, mask = node.args
    if sum(mask) < 2:
        return None
    others = [dim for dim in range(g.dim()) if dim != 1]
    grad_b = g.sum(others) if mask[2] else None
    return *(_one(node, (g, x, w), settings, i) if mask[i] else None for i in (0, 1)), grad_b


def _one(node: Value, tensors: Any, settings: Any, index: int) -> Value:
    mask = [position == index for position in range(3)]
    call = node.maker.call(aten.convolution_backward.default, *tensors, None, *settings, mask)
    return node.maker.call(getitem, call, index)


TABLE: Table = (convolution_backward,)
