"""What every writer of a call needs of a node: its arguments, its source line, the ops in it."""

from __future__ import annotations

from typing import Any

from torch import fx

from pullback.emit.cpp.values import CppWriter
from pullback.function.slots import op_schema
from pullback.graph.cost import op_of
from pullback.graph.values import tensor_of


def ops_inside(node: fx.Node, writer: CppWriter) -> int:
    """How many ops stand inside the arguments of `node`."""
    return 1 + sum(writer.node(arg).size for arg in node.all_input_nodes if arg in writer.inlined)


def op_arguments(node: fx.Node) -> list[Any]:
    """Every argument of the op that `node` calls, defaults included, in the order of its schema."""
    op = op_of(node)
    given = []
    for place, parameter in enumerate(op_schema(op).arguments):
        if parameter.name in node.kwargs:
            given.append(node.kwargs[parameter.name])
        elif place < len(node.args) and not parameter.kwarg_only:
            given.append(node.args[place])
        else:
            given.append(parameter.default_value if parameter.has_default_value() else None)
    return given


def node_place(node: fx.Node) -> str:
    """The user's file and line that `node` came from."""
    return str(node.meta.get("place", ""))


def is_tensor_node(value: Any) -> bool:
    """Whether an argument is a node that holds one tensor."""
    return isinstance(value, fx.Node) and tensor_of(value) is not None
