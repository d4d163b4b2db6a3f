"""Arithmetic of sizes, and of other numbers that are made of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pullback.emit.cpp.nodes import node_place
from pullback.emit.cpp.values import PRODUCT, SUM, CppWriter, bare, no_cpp_form
from pullback.graph.spelling.expressions import ATOM, Expression
from pullback.graph.values import held_value


def arithmetic(writer: CppWriter, node: fx.Node) -> Expression:
    """Arithmetic of sizes and other plain numbers."""
    known = _NUMBERS.get(node.target)
    if known is None:
        name = getattr(node.target, "__name__", str(node.target))
        raise no_cpp_form("a call that is no op of PyTorch", f"`{name}`", node_place(node))
    is_real = isinstance(node.meta.get("val"), torch.SymFloat | float)
    parts = [
        _number(writer, arg, is_first=place == 0, is_real=is_real)
        for place, arg in enumerate(node.args)
    ]
    return known(writer, node, *parts)


def _number(writer: CppWriter, arg: Any, *, is_first: bool, is_real: bool) -> Expression:
    if is_real and isinstance(held_value(arg), torch.SymInt | int):
        arg = float(arg) if isinstance(arg, int) else arg
        if not isinstance(arg, float):
            return bare(f"c10::SymFloat({_whole(writer, arg)})")
    if isinstance(arg, fx.Node):
        return writer.node(arg)
    if isinstance(arg, torch.SymInt):
        return bare(writer.source_of(arg))
    if isinstance(arg, float):
        return bare(f"c10::SymFloat({arg!r})")
    return bare(f"c10::SymInt({arg})" if is_first or arg < 0 else str(arg))


def _whole(writer: CppWriter, arg: Any) -> str:
    return writer.node(arg).text if isinstance(arg, fx.Node) else writer.source_of(arg)


def _infix(sign: str, level: int, *, commutes: bool) -> Callable[..., Expression]:
    def write(writer: CppWriter, node: fx.Node, a: Expression, b: Expression) -> Expression:
        right = level if commutes else level + 1
        return bare(f"{a.within(level)} {sign} {b.within(right)}", level)

    return write


def _helper(name: str) -> Callable[..., Expression]:
    def write(writer: CppWriter, node: fx.Node, *parts: Expression) -> Expression:
        writer.helpers.add(name)
        return bare(f"{name}({', '.join(part.text for part in parts)})")

    return write


def _call_of(pattern: str) -> Callable[..., Expression]:
    def write(writer: CppWriter, node: fx.Node, *parts: Expression) -> Expression:
        return bare(pattern.format(*(part.within(ATOM) for part in parts)))

    return write


def _power(writer: CppWriter, node: fx.Node, a: Expression, b: Expression) -> Expression:
    if isinstance(node.meta.get("val"), torch.SymFloat | float):
        return _helper("power")(writer, node, a, b)
    exponent = node.args[1]
    if not isinstance(exponent, int) or not 0 < exponent <= 8:
        raise no_cpp_form("a power of a size", f"`{node}`", node_place(node))
    return bare(" * ".join([a.within(PRODUCT)] * exponent), PRODUCT)


_NUMBERS: dict[Any, Callable[..., Expression]] = {
    operator.add: _infix("+", SUM, commutes=True),
    operator.sub: _infix("-", SUM, commutes=False),
    operator.mul: _infix("*", PRODUCT, commutes=True),
    operator.floordiv: _helper("floor_div"),
    operator.mod: _helper("floor_mod"),
    operator.truediv: _infix("/", PRODUCT, commutes=False),
    operator.pow: _power,
    operator.neg: _call_of("(c10::SymInt(0) - {0})"),
    operator.eq: _call_of("{0}.sym_eq({1})"),
    operator.ne: _call_of("{0}.sym_ne({1})"),
    operator.lt: _call_of("{0}.sym_lt({1})"),
    operator.le: _call_of("{0}.sym_le({1})"),
    operator.gt: _call_of("{0}.sym_gt({1})"),
    operator.ge: _call_of("{0}.sym_ge({1})"),
    torch.sym_max: _call_of("{0}.max({1})"),
    torch.sym_min: _call_of("{0}.min({1})"),
    torch.sym_float: _call_of("{0}"),
    torch.sym_sqrt: _call_of("{0}.sqrt()"),
    operator.and_: _call_of("{0}.sym_and({1})"),
    operator.or_: _call_of("{0}.sym_or({1})"),
    torch.sym_not: _call_of("{0}.sym_not()"),
    math.trunc: _helper("floor_of"),
    math.floor: _helper("floor_of"),
}
