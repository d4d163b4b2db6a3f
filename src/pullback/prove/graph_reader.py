"""Reads the gradients of a joint graph as expressions, element by element, for given sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import decomposition_table

from pullback.capture.fake import Stage
from pullback.capture.trees import flatten, map_leaves
from pullback.graph.parts import JointGraph, calls
from pullback.prove.grids import Grid, Table, elementwise
from pullback.prove.pointwise_ops import POINTWISE
from pullback.prove.reduction_ops import GRIDWISE
from pullback.prove.scalars import Outside, Scalar, as_scalar, known_number

# Ops that only move elements, or pad with zeros: torch runs them on the places of a grid.
MOVES = frozenset(
    [
        *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "expand", "expand_as"),
        *("permute", "transpose", "t", "movedim", "squeeze", "unsqueeze", "flip", "roll"),
        *("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "diagonal"),
        *("slice_backward", "select_backward", "diagonal_backward", "diag_embed"),
        *("slice_scatter", "select_scatter", "cat", "stack", "repeat", "constant_pad_nd"),
        *("tril", "triu"),
    ]
)
COPIES = frozenset(
    [
        *("clone", "detach", "alias", "lift", "lift_fresh", "lift_fresh_copy"),
        *("contiguous", "_to_copy", "view_as", "_reshape_alias"),
    ]
)
UNINITIALISED = known_number(0) / known_number(0)
FILLS: dict[str, Any] = {
    **dict.fromkeys(["empty_like", "new_empty"], UNINITIALISED),
    **dict.fromkeys(["zeros_like", "new_zeros", "zeros"], 0),
    **dict.fromkeys(["ones_like", "new_ones", "ones"], 1),
    **dict.fromkeys(["full_like", "new_full", "full", "scalar_tensor"]),
}
MADE = frozenset(["arange", "eye", "linspace"])
SIZES = frozenset(["sym_size", "sym_numel"])

# Ops that return booleans, and ops that do so for boolean inputs.
BOOLEAN = frozenset(
    ["gt", "lt", "ge", "le", "eq", "ne", "logical_and", "logical_or", "logical_not"]
)
EITHER = frozenset(
    [
        *("bitwise_and", "bitwise_or", "bitwise_not"),
        *("where", "masked_fill", "mul", "maximum", "minimum"),
    ]
)

_SETTINGS = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")


class GraphReader:
    """One joint graph, read for given inputs and cotangents.

    `is_pointwise` says, once gradients were read, whether every element of them depends only on
    the elements at its own place, by a formula without sizes.
    """

    def __init__(self, joint: JointGraph, given: Sequence[tuple[Sequence[Scalar], Any]]) -> None:
        """`given` has the expressions and the shape of each placeholder."""
        self.joint = joint
        self.table = Table()
        self._opened: list[Any] = []
        self._values: dict[fx.Node, Any] = {
            node: self.table.grid(scalars, shape)
            for node, (scalars, shape) in zip(joint.placeholders, given, strict=True)
        }
        varied = [grid for grid in self._values.values() if not grid.is_constant]
        has_numbers = any(s.kind == "number" for grid in varied for s in grid.scalars())
        self.is_pointwise = len({grid.shape for grid in varied}) <= 1 and not has_numbers

    def gradient(self, place: int) -> list[Scalar] | None:
        """The elements of a gradient, or None if there is none; raises `Outside`."""
        node = self.joint.gradients[place]
        return self.elements(node) if isinstance(node, fx.Node) else None

    def elements(self, node: fx.Node) -> list[Scalar]:
        """The elements of what a node computes; raises `Outside`."""
        for each in _ancestors(node, self._values):
            self._values[each] = self._read(each)
        return list(self._values[node].scalars())

    def _read(self, node: fx.Node) -> Any:
        try:
            return self._value(node)
        except Outside:
            raise
        except Exception as error:  # arguments that the formula of this op does not take
            raise Outside(f"`{op_path(node)}` in a form that is not read ({error})") from None

    def _value(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            values, place = self._taken(node)[0]
            return values[place]
        _require_real(node)
        name = op_path(node)
        args, settings = self._taken(node)
        if _is_arithmetic(node.target):
            return node.target(*args)  # type: ignore[operator]
        if name in POINTWISE:
            return self._pointwise(node, args, settings)
        if name in COPIES:
            return _copied(node, args[0])
        if name in FILLS:
            return self._filled(node, args)
        if name in SIZES:
            return args[0].shape[args[1]] if name == "sym_size" else args[0].places.numel()
        if name not in MADE | MOVES | GRIDWISE.keys():
            return self._decomposed(node)
        self.is_pointwise = False
        return self._across_elements(node, args, settings)

    def _taken(self, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What `node` is called with, without the arguments that only concern memory."""
        map_arg: Any = fx.map_arg
        args, kwargs = map_arg((node.args, dict(node.kwargs)), self._values.__getitem__)
        return args, {key: value for key, value in kwargs.items() if key not in _SETTINGS}

    def _pointwise(self, node: fx.Node, args: Any, settings: dict[str, Any]) -> Grid:
        name = op_path(node)
        is_boolean = node.meta["val"].dtype is torch.bool
        if is_boolean and name not in BOOLEAN | EITHER:
            raise Outside(f"`{name}` of booleans")
        if name.startswith("bitwise") and not is_boolean:
            raise Outside(f"`{name}` of integers")
        names, values = list(settings), list(settings.values())
        count = len(args)

        def function(*given: Any) -> Scalar:
            return POINTWISE[name](*given[:count], **dict(zip(names, given[count:], strict=True)))

        result = elementwise(self.table, function, [*args, *values])
        varied = [grid for grid in _grids_in([args, values]) if not grid.is_constant]
        sized = [n for n in node.all_input_nodes if not isinstance(self._values[n], Grid)]
        if sized or any(grid.shape != result.shape for grid in varied):
            self.is_pointwise = False
        return result

    def _filled(self, node: fx.Node, args: Sequence[Any]) -> Grid:
        name = op_path(node)
        shape = () if name == "scalar_tensor" else args[name.startswith("new_")]
        value = FILLS[name]
        if value is None:
            place = {"scalar_tensor": 0, "new_full": 2}.get(name, 1)
            value = args[place]
            self.is_pointwise &= not isinstance(node.args[place], fx.Node)
        sizes = shape.shape if isinstance(shape, Grid) else tuple(shape)
        return self.table.grid([as_scalar(value)] * math.prod(sizes), sizes)

    def _across_elements(self, node: fx.Node, args: Any, settings: dict[str, Any]) -> Any:
        """What an op computes from several elements."""
        name = op_path(node)
        target: Any = node.target
        if name in MADE and not _grids_in(args):
            made = target(*args, **settings)
            return self.table.grid([known_number(v) for v in made.flatten().tolist()], made.shape)
        if name == "constant_pad_nd" and len(args) > 2 and args[2]:
            raise Outside(f"`{name}` with {args[2]}")
        if name in MOVES:
            if any(isinstance(arg, torch.dtype) for arg in args):
                raise Outside(f"`{name}` of memory as another dtype")
            moved = target(*_places(args), **_places(settings))
            return map_leaves(lambda places: Grid(places, self.table), moved)
        return GRIDWISE[name](*args, **settings)

    def _decomposed(self, node: fx.Node) -> Any:
        """What an op computes that has no formula here, by the ops PyTorch decomposes it into."""
        outside = Outside(f"`{op_path(node)}`")
        op: Any = node.target
        decomposition = decomposition_table.get(op)
        if decomposition is None or op in self._opened:
            raise outside
        stage, values = Stage(dynamic=False), self._values
        inputs = [each for each in node.all_input_nodes if isinstance(values[each], Grid)]

        def call(*tensors: Tensor) -> Any:
            known = {**values, **dict(zip(inputs, tensors, strict=True))}
            args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
            return op(*args, **kwargs)

        shapes = [torch.empty(values[n].shape, dtype=n.meta["val"].dtype) for n in inputs]
        given = [stage.stand_in(each) for each in shapes]
        graph = stage.trace(call, given, decompositions={op: decomposition}).graph
        placeholders = graph.find_nodes(op="placeholder")
        values |= {p: values[each] for p, each in zip(placeholders, inputs, strict=True)}
        self._opened.append(op)  # some decompositions call the op itself
        try:
            for each in calls(graph):
                values[each] = self._read(each)
        except Outside:
            raise outside from None
        finally:
            self._opened.pop()
        return fx.map_arg(graph.output_node().args[0], values.__getitem__)


def op_path(node: fx.Node) -> str:
    """The op that a node calls: `mul` for `aten.mul.Tensor`, `lib::op` for one of a library."""
    space, _, rest = str(node.target).partition(".")
    name = rest.partition(".")[0]
    return name if space == "aten" else f"{space}::{name}"


def _ancestors(node: fx.Node, known: dict[fx.Node, Any]) -> list[fx.Node]:
    """What must be computed for `node`, in the order of the graph."""
    needed, stack = set(), [node]
    while stack:
        each = stack.pop()
        if each not in needed and each not in known:
            needed.add(each)
            stack += each.all_input_nodes
    return [each for each in node.graph.nodes if each in needed]


def _require_real(node: fx.Node) -> None:
    value = node.meta.get("val")
    if isinstance(value, Tensor) and value.is_complex():
        raise Outside("complex numbers")


def _copied(node: fx.Node, grid: Grid) -> Grid:
    """The same numbers in another dtype or memory; exact unless the new dtype has no fractions."""
    value, source = node.meta["val"], node.args[0]
    assert isinstance(source, fx.Node)
    before = source.meta["val"].dtype
    if value.dtype is torch.bool and before is not torch.bool:
        return grid.map(POINTWISE["ne"], 0)
    if before.is_floating_point and not value.dtype.is_floating_point:
        raise Outside(f"a conversion to {value.dtype}")
    return grid


def _is_arithmetic(target: Any) -> bool:
    """Whether a call computes with sizes: a plain function, no op."""
    return not isinstance(target, type(torch.ops.aten.mul.Tensor))


def _grids_in(tree: Any) -> list[Grid]:
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Grid)]


def _places(tree: Any) -> Any:
    return map_leaves(lambda leaf: leaf.places if isinstance(leaf, Grid) else leaf, tree)
