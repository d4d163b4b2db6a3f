"""Sizes: a symbolic size is read from an argument of the graph, not from a value on the way.

In backward that is a cotangent where one has the size: backward then needs nothing saved for it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from functools import partial, reduce
from typing import Any

import torch
from torch import fx

from pullback.graph.copies import Source, copied_graph, with_graph
from pullback.graph.cost import expression_of
from pullback.graph.parts import BACKWARD, JointGraph, phase_of
from pullback.graph.rewrite import Table, rule
from pullback.graph.values import Maker, Value, aten, tensor_of

COTANGENT = "is_cotangent"
"""The entry of `meta` by which forward knows a placeholder that it may not read."""

WHY = "both sizes are the same expression in the sizes of the arguments"


@rule("size-of-argument", aten.sym_size.int, aten.sym_numel.default, why=WHY)
def size_of_argument(node: Value) -> Any:
    """(x * w).shape[0] -> x.shape[0]"""
    if node.args[0].node.op == "placeholder":
        return None
    return _Sizes.known_to(node).read(expression_of(node.val), node.maker)


ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv)


@rule("size-arithmetic", *ARITHMETIC, why=WHY)
def size_arithmetic(node: Value) -> Any:
    """0 + (x.shape[0] + 2 - 1) // 2 -> (x.shape[0] + 1) // 2"""
    if not isinstance(node.val, torch.SymInt):
        return None
    sizes, expression = _Sizes.known_to(node), expression_of(node.val)
    effort = sizes.effort(expression)
    if effort is None or effort >= _effort(node.node):
        return None
    return sizes.read(expression, node.maker)


def _effort(node: Any) -> int:
    """How many operators it takes to compute a size."""
    if not isinstance(node, fx.Node) or node.target not in ARITHMETIC:
        return 0
    return 1 + sum(map(_effort, node.args))


class _Sizes:
    """The sizes of some tensors, and what can be computed from them."""

    def __init__(self, tensors: Iterable[fx.Node]) -> None:
        self.dims: dict[Any, tuple[fx.Node, int]] = {}
        self.totals: dict[Any, fx.Node] = {}
        for source in tensors:
            value = tensor_of(source)
            shape: Any = () if value is None else value.shape
            total = reduce(operator.mul, map(expression_of, shape), 1)
            for dim, size in enumerate(shape):
                if not isinstance(size, int):
                    self.dims.setdefault(expression_of(size), (source, dim))
            if sum(not isinstance(size, int) for size in shape) > 1:
                self.totals.setdefault(total, source)

    @staticmethod
    def known_to(node: Value) -> _Sizes:
        """The sizes of the arguments of the graph of `node`, as far as its phase knows them."""
        late = _is_backward(node.node)
        arguments = node.node.graph.find_nodes(op="placeholder")
        return _Sizes(each for each in arguments if late or not each.meta.get(COTANGENT))

    def effort(self, expression: Any) -> int | None:
        """How many operators it takes to compute `expression`; None if it cannot be done."""
        if _is_known(expression, self.dims, self.totals):
            return 0
        parts = self.parts(expression)
        efforts = [self.effort(part) for part in parts[1]] if parts else [None]
        known = [effort for effort in efforts if effort is not None]
        return None if len(known) < len(efforts) else sum(known) + len(known) - 1

    def read(self, expression: Any, maker: Maker) -> Any:
        """A value for `expression`: a number, a size of a tensor, or made of such."""
        if self.effort(expression) is None:
            return None
        if _is_number(expression):
            return int(expression)
        if expression in self.dims:
            source, dim = self.dims[expression]
            return maker.wrap(source).made(aten.sym_size.int, dim)
        if expression in self.totals:
            return maker.wrap(self.totals[expression]).made(aten.sym_numel.default)
        op, parts = self.parts(expression)
        return reduce(partial(self.joined, maker, op), [self.read(part, maker) for part in parts])

    def parts(self, expression: Any) -> Any:
        """The operator of an expression and its operands, in the order that reads best."""
        if type(expression).__name__ == "FloorDiv":
            return operator.floordiv, expression.args
        order = [*self.dims]
        ranks = {size: rank for rank, size in enumerate(order)}
        args = sorted(expression.args, key=lambda arg: ranks.get(arg, len(order)))
        if expression.is_Mul:
            args.sort(key=lambda arg: not _is_number(arg))
            return operator.mul, args
        if expression.is_Add:
            args.sort(key=lambda arg: (_is_number(arg), arg.could_extract_minus_sign()))
            return operator.add, args
        return None

    def joined(self, maker: Maker, op: Any, left: Any, right: Any) -> Any:
        """`left op right`, where a negative summand is subtracted."""
        if op is operator.add and isinstance(right, int) and right < 0:
            return maker.call(operator.sub, left, -right)
        if op is operator.add and isinstance(right, Value) and right.target is operator.mul:
            factor, *rest = right.args
            if factor == -1 and len(rest) == 1:
                return maker.call(operator.sub, left, rest[0])
        return maker.call(op, left, right)


def _is_number(expression: Any) -> bool:
    return isinstance(expression, int) or bool(expression.is_Integer)


def _is_known(expression: Any, *books: dict[Any, Any]) -> bool:
    return _is_number(expression) or any(expression in book for book in books)


TABLE: Table = (size_of_argument, size_arithmetic)


# ---- sizes of cotangents ----


def read_from_cotangents(source: Source) -> Source:
    """A joint graph with each size that backward uses read from a cotangent that has it.

    Its cotangents are marked, for rules that see one node at a time.
    """
    if not isinstance(source, JointGraph):
        return source
    graph, copies = copied_graph(source.graph)
    for cotangent in source.cotangents:
        copies[cotangent].meta[COTANGENT] = True
    sizes = _Sizes(copies[node] for node in source.cotangents).dims
    for node in graph.find_nodes(op="call_function", target=aten.sym_size.int):
        late = [user for user in node.users if _is_backward(user)]
        size = expression_of(node.meta["val"])
        if size not in sizes or sizes[size][0] is node.args[0] or not late:
            continue
        cotangent, dim = sizes[size]
        value = Value(cotangent, Maker(node)).made(aten.sym_size.int, dim)
        value.node.meta["phase"] = BACKWARD
        for user in late:
            user.replace_input_with(node, value.node)
    return with_graph(source, graph)


def _is_backward(node: fx.Node) -> bool:
    return node.op == "call_function" and phase_of(node) == BACKWARD


# ---- numbers that a backward is given ----


def read_numbers(backward: fx.Graph, numbers: Collection[str]) -> fx.Graph:
    """`backward` with each of its `numbers` read from the tensors it is given, where these have it.

    Arguments:
        backward: A graph whose placeholders are tensors and numbers. It stays as it is.
        numbers: The names of the placeholders that are numbers. Those that are read elsewhere
            are gone from the new graph.
    """
    graph, _ = copied_graph(backward)
    placeholders = graph.find_nodes(op="placeholder")
    sizes = _Sizes(node for node in placeholders if node.name not in numbers)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in placeholders:
        value = node.meta.get("val")
        if node.name not in numbers or not isinstance(value, torch.SymInt):
            continue
        size = sizes.read(expression_of(value), Maker(first))
        if isinstance(size, Value):
            node.replace_all_uses_with(size.node, propagate_meta=False)
            graph.erase_node(node)
    return graph
