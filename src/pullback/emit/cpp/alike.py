"""Graphs that differ in some numbers alone: where, and how to put other numbers there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from pullback.emit.cpp.nodes import op_arguments
from pullback.function.slots import op_schema
from pullback.graph.cost import op_of

Place = tuple[int, int, int]
"""A number in a row of graphs: the graph, the node in it, the argument of its op."""

COMPARED = dict.fromkeys(("gt", "ge", "lt", "le", "eq", "ne"), ("other",))
ARITHMETIC = dict.fromkeys(("add", "sub", "rsub", "mul", "div"), ("other", "alpha"))
FILLING = {
    "full": ("fill_value",),
    "full_like": ("fill_value",),
    "new_full": ("fill_value",),
    "fill": ("value",),
    "masked_fill": ("value",),
    "scatter": ("value",),
    "scalar_tensor": ("s",),
    "where": ("self", "other"),
}
OTHERS = {
    "clamp": ("min", "max"),
    "clamp_min": ("min",),
    "clamp_max": ("max",),
    "addcmul": ("value",),
    "addcdiv": ("value",),
    "lerp": ("weight",),
    "leaky_relu": ("negative_slope",),
    "elu": ("alpha", "scale", "input_scale"),
    "softplus": ("beta", "threshold"),
    "threshold": ("threshold", "value"),
    "hardtanh": ("min_val", "max_val"),
    "native_layer_norm": ("eps",),
    "native_group_norm": ("eps",),
}
UNIFORM = {**COMPARED, **ARITHMETIC, **FILLING, **OTHERS}
"""The arguments that an op computes with in one way, whatever they are, and so does its gradient.

Not so the exponent of a power: autograd has other formulas for some of them.
"""


def numbers_apart(ours: Sequence[fx.Graph], theirs: Sequence[fx.Graph]) -> dict[Place, Any] | None:
    """The numbers in which `theirs` differ from `ours`; None where not all else is the same."""
    found: dict[Place, Any] = {}
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        first, second = list(a.nodes), list(b.nodes)
        if len(first) != len(second):
            return None
        numbers = [{node: i for i, node in enumerate(nodes)} for nodes in (first, second)]
        for place, (x, y) in enumerate(zip(first, second, strict=True)):
            apart = _apart(x, y, *numbers)
            if apart is None:
                return None
            found |= {(index, place, argument): value for argument, value in apart.items()}
    return found


def _apart(
    a: fx.Node, b: fx.Node, first: dict[fx.Node, int], second: dict[fx.Node, int]
) -> dict[int, Any] | None:
    """The arguments in which two calls differ, if these are numbers that may be others."""
    if (a.op, a.target) != (b.op, b.target) or _kind(a) != _kind(b):
        return None
    if op_of(a) is None:
        same = _shown((a.args, a.kwargs), first) == _shown((b.args, b.kwargs), second)
        return {} if same or a.op == "placeholder" else None
    found: dict[int, Any] = {}
    parameters = op_schema(op_of(a)).arguments
    uniform = UNIFORM.get(op_schema(op_of(a)).name.partition("::")[2].removesuffix("_backward"), ())
    for place, (x, y) in enumerate(zip(op_arguments(a), op_arguments(b), strict=True)):
        if _shown(x, first) == _shown(y, second):
            continue
        is_number = type(x) in (int, float) and type(y) is type(x)
        if not is_number or parameters[place].name not in uniform:
            return None
        found[place] = y
    return found


def _kind(node: fx.Node) -> str:
    """What a node holds, sizes as the symbols that they are."""
    value = node.meta.get("val")
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} {getattr(value, 'dtype', '')} {shape}"


def _shown(tree: Any, numbers: dict[fx.Node, int]) -> str:
    """Arguments as text, nodes by their places in the graph."""
    return repr(fx.map_arg(tree, lambda node: f"%{numbers[node]}"))


def number_at(graphs: Sequence[fx.Graph], place: Place) -> Any:
    """The number that stands in a place."""
    index, node, argument = place
    return op_arguments(list(graphs[index].nodes)[node])[argument]


def put_number(graphs: Sequence[fx.Graph], place: Place, value: Any) -> None:
    """Put another number in a place."""
    index, number, argument = place
    node = list(graphs[index].nodes)[number]
    name = op_schema(op_of(node)).arguments[argument].name
    if name in node.kwargs or argument >= len(node.args):
        node.update_kwarg(name, value)
    else:
        node.update_arg(argument, value)
