"""The gradients of a joint graph as expressions, element by element, for tensors of given sizes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.derive.formulas import GRIDWISE, POINTWISE
from pullback.derive.grids import Grid, Table, together
from pullback.derive.scalars import Outside, Scalar, number
from pullback.graph.parts import JointGraph

# Ops that only move elements about, or fill up with zeros: torch does them on the places of a grid.
MOVES = frozenset(
    "view _unsafe_view reshape expand expand_as permute transpose t movedim squeeze unsqueeze "
    "slice select narrow split split_with_sizes chunk unbind cat stack flip roll repeat "
    "slice_backward select_backward constant_pad_nd diagonal diagonal_backward diag_embed tril "
    "triu slice_scatter select_scatter unflatten flatten".split()
)
COPIES = frozenset(
    "clone detach alias lift lift_fresh lift_fresh_copy contiguous _to_copy view_as "
    "_reshape_alias".split()
)
FILLS = {"zeros_like": 0, "ones_like": 1, "full_like": None, "new_zeros": 0, "new_ones": 1}
FILLS |= {"new_full": None, "zeros": 0, "ones": 1, "full": None, "scalar_tensor": None}
MADE = frozenset(["arange", "eye", "linspace"])
SIZES = frozenset(["sym_size", "sym_numel"])

_SETTINGS = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")


class Reading:
    """One joint graph, read for given inputs and cotangents.

    `is_pointwise` tells, once gradients were read, whether every element of them depends only on
    the elements at its own place, by a formula that knows no sizes.
    """

    def __init__(self, joint: JointGraph, given: Sequence[tuple[Sequence[Scalar], Any]]) -> None:
        """`given` has the expressions and the shape of each placeholder."""
        self.joint = joint
        self.table = Table()
        self.is_pointwise = len({tuple(shape) for _, shape in given}) <= 1
        self._values: dict[fx.Node, Any] = {
            node: self.table.grid(scalars, shape)
            for node, (scalars, shape) in zip(joint.placeholders, given, strict=True)
        }

    def gradient(self, place: int) -> list[Scalar] | None:
        """The elements of a gradient, or None if there is none; raises `Outside`."""
        node = self.joint.gradients[place]
        if not isinstance(node, fx.Node):
            return None
        for each in _ancestors(node, self._values):
            self._values[each] = self._value(each)
        return list(self._values[node].scalars())

    def _value(self, node: fx.Node) -> Any:
        name = name_of(node)
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._values.__getitem__)  # type: ignore[no-untyped-call]
        settings = {key: value for key, value in kwargs.items() if key not in _SETTINGS}
        if node.target is operator.getitem:
            return args[0][args[1]]
        _require_real(node)
        if name in SIZES:
            return args[0].shape[args[1]] if name == "sym_size" else args[0].places.numel()
        if name in POINTWISE:
            return self._pointwise(node, args, settings)
        if name in COPIES:
            return _copied(node, args[0])
        if name in FILLS:
            return self._filled(name, args, settings)
        if not _grids_in(args) and name in MADE:
            self.is_pointwise = False
            return self._made(node.target(*args, **settings))  # type: ignore[operator]
        if not _grids_in(args) and not isinstance(node.target, torch._ops.OpOverload):
            return node.target(*args, **kwargs)  # type: ignore[operator]
        self.is_pointwise = False
        if name in MOVES:
            return self._moved(node.target, args, settings)
        if name in GRIDWISE:
            return GRIDWISE[name](*args, **settings)
        raise Outside(f"`{name}`")
