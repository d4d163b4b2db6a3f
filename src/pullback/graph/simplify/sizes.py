"""Sizes: a symbolic size is read from an argument of the graph, not from a value on the way."""

from __future__ import annotations

import operator
from functools import partial, reduce
from typing import Any

from pullback.graph.cost import expression_of
from pullback.graph.rewrite import Table, rule
from pullback.graph.values import Value, aten, tensor_of


@rule(
    "size-of-argument",
    aten.sym_size.int,
    why="both sizes are the same expression in the sizes of the arguments",
)
def size_of_argument(node: Value) -> Any:
    """(x * w).shape[0] -> x.shape[0]"""
    if node.args[0].node.op == "placeholder":
        return None
    return _read(node.val.node.expr, node)


def _read(expression: Any, node: Value) -> Any:
    """A value for a size: read from a placeholder, or a product of such."""
    if expression.is_Integer:
        return int(expression)
    sizes = _sizes(node)
    if expression in sizes:
        source, dim = sizes[expression]
        return node.maker.wrap(source).made(aten.sym_size.int, dim)
    if not expression.is_Mul:
        return None
    order = list(sizes)
    args = sorted(expression.args, key=lambda arg: order.index(arg) if arg in sizes else -1)
    factors = [_read(arg, node) for arg in args]
    return None if None in factors else reduce(partial(node.maker.call, operator.mul), factors)


def _sizes(node: Value) -> dict[Any, tuple[Any, int]]:
    """The placeholder and dimension to read each symbolic size from, in order."""
    sizes: dict[Any, tuple[Any, int]] = {}
    for source in node.node.graph.find_nodes(op="placeholder"):
        value = tensor_of(source)
        shape: Any = () if value is None else value.shape
        for dim, size in enumerate(shape):
            if not isinstance(size, int):
                sizes.setdefault(expression_of(size), (source, dim))
    return sizes


TABLE: Table = (size_of_argument,)
