"""Operators: arithmetic, comparisons and matrix products, written infix."""

from __future__ import annotations

import math
import operator
import re
from typing import Any

import torch
from torch import fx

from pullback.graph.spelling.expressions import (
    AND,
    ATOM,
    COMPARED,
    OR,
    POWER,
    PRODUCT,
    SIGN,
    SUM,
    Expression,
    PythonWriter,
    Spelling,
    Spellings,
)
from pullback.graph.values import aten, is_scalar, tensor_of


def infix_expression(
    writer: PythonWriter, sign: str, level: int, left: Any, right: Any
) -> Expression:
    """`left sign right`. Evaluation goes from left to right, as in the graph."""
    one, two = writer.expression(left), writer.expression(right)
    text = f"{one.within(level)} {sign} {two.within(level + 1)}"
    return Expression(text, level, one.size + two.size + 1)


def infix(sign: str, level: int) -> Spelling:
    """Two operands; keywords such as `alpha` have no infix form."""

    def spell(writer: PythonWriter, node: fx.Node) -> Expression | None:
        if len(node.args) != 2 or node.kwargs:
            return None
        return infix_expression(writer, sign, level, *plain(node))

    return spell


def plain(node: fx.Node) -> list[Any]:
    """The arguments, with `2` for `2.0` where the result is floating point anyway."""
    tensors = [value for arg in node.args if (value := tensor_of(arg)) is not None]
    is_number = not tensors and node.target in NUMBERS and _computes_in_float(node)
    if not is_number and not any(value.is_floating_point() for value in tensors):
        return list(node.args)
    return list(map(_shortened, node.args))


NUMBERS = (operator.add, operator.sub, operator.mul, operator.truediv)


def _shortened(arg: Any) -> Any:
    is_whole = isinstance(arg, float) and arg.is_integer() and abs(arg) < 1000
    return int(arg) if is_whole and (arg != 0 or math.copysign(1, arg) > 0) else arg


def product(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`2 * x`: a number stands in front. Multiplication commutes, in floating point too."""
    left, right = plain(node)
    if is_scalar(right) and not is_scalar(left):
        left, right = right, left
    return infix_expression(writer, "*", PRODUCT, left, right)


def comparison(sign: str) -> Spelling:
    """Two operands, each more tightly bound: comparisons do not chain on tensors."""

    def spell(writer: PythonWriter, node: fx.Node) -> Expression | None:
        left, right = writer.expression(node.args[0]), writer.expression(node.args[1])
        text = f"{left.within(OR)} {sign} {right.within(OR)}"
        return Expression(text, COMPARED, left.size + right.size + 1)

    return spell


def reversed_difference(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`1 - x`."""
    if len(node.args) != 2 or node.kwargs or tensor_of(node.args[1]) is not None:
        return None
    return infix_expression(writer, "-", SUM, *plain(node)[::-1])


def prefixed(sign: str) -> Spelling:
    """`-x`, `~mask`."""

    def spell(writer: PythonWriter, node: fx.Node) -> Expression | None:
        inner = writer.expression(node.args[0])
        return Expression(f"{sign}{inner.within(POWER)}", SIGN, inner.size + 1)

    return spell


def power(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x**3`, which binds its left operand more tightly than its right one."""
    base, exponent = map(writer.expression, plain(node))
    left, right = base.within(POWER + 1), exponent.within(SIGN)
    is_simple = all(re.fullmatch(r"-?[\w.]+", text) for text in (left, right))
    text = f"{left}**{right}" if is_simple else f"{left} ** {right}"
    return Expression(text, POWER, base.size + exponent.size + 1)


def both(sign: str, level: int) -> Spelling:
    """`mask & other`, of booleans."""

    def spell(writer: PythonWriter, node: fx.Node) -> Expression | None:
        values = list(map(tensor_of, node.args))
        if any(value is None or value.dtype != torch.bool for value in values):
            return None
        return infix_expression(writer, sign, level, *node.args)

    return spell


def as_float(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """The size itself where it becomes floating point anyway."""
    return writer.expression(node.args[0]) if floats_anyway(node) else None


def floats_anyway(node: fx.Node) -> bool:
    """Whether all that uses a number computes in floating point, whatever the number is."""
    return all(_computes_in_float(user) for user in node.users)


def _computes_in_float(node: fx.Node) -> bool:
    if node.target is operator.truediv:
        return True
    if node.target is operator.pow and isinstance(node.args[1], float):
        return not node.args[1].is_integer()
    if node.target in (operator.add, operator.sub, operator.mul):
        return any(isinstance(arg, float) for arg in node.args) or floats_anyway(node)
    values = [value for arg in node.args if (value := tensor_of(arg)) is not None]
    return any(value.is_floating_point() for value in values)


def truncated(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`int(1.7 * n)`."""
    return writer.call("int", node.args[0])


def rounded_down(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`int(1.7 * n // 1)`: the text imports nothing but torch."""
    inner = infix_expression(writer, "//", PRODUCT, node.args[0], 1)
    return Expression(f"int({inner.text})", ATOM, inner.size + 1)


def rounded_up(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`-int(-(1.7 * n) // 1)`."""
    inner = writer.expression(node.args[0])
    return Expression(f"-int(-{inner.within(POWER)} // 1)", SIGN, inner.size + 2)


def to_nearest(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`round(1.7 * n)`."""
    return writer.call("round", *node.args)


def reciprocal(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`1 / x`: PyTorch computes the reciprocal and multiplies it by one."""
    value = tensor_of(node.args[0])
    if value is None or not value.is_floating_point():
        return None
    return infix_expression(writer, "/", PRODUCT, 1, node.args[0])


SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
"""The signs of comparisons, by the names of their ops."""

TABLE: Spellings = {
    aten.add.Tensor: infix("+", SUM),
    aten.sub.Tensor: infix("-", SUM),
    aten.mul.Tensor: product,
    aten.div.Tensor: infix("/", PRODUCT),
    aten.add.Scalar: infix("+", SUM),
    aten.sub.Scalar: infix("-", SUM),
    aten.mul.Scalar: product,
    aten.div.Scalar: infix("/", PRODUCT),
    aten.rsub.Scalar: reversed_difference,
    aten.neg.default: prefixed("-"),
    aten.reciprocal.default: reciprocal,
    aten.pow.Tensor_Scalar: power,
    aten.pow.Tensor_Tensor: power,
    aten.pow.Scalar: power,
    **dict.fromkeys((aten.mm.default, aten.bmm.default), infix("@", PRODUCT)),
    **dict.fromkeys((aten.mv.default, aten.dot.default), infix("@", PRODUCT)),
    aten.matmul.default: infix("@", PRODUCT),
    aten.bitwise_and.Tensor: infix("&", AND),
    aten.bitwise_or.Tensor: infix("|", OR),
    aten.bitwise_not.default: prefixed("~"),
    aten.logical_and.default: both("&", AND),
    aten.logical_or.default: both("|", OR),
    **{
        op: comparison(sign)
        for name, sign in SIGNS.items()
        for op in (
            getattr(aten, name).Tensor,
            getattr(aten, name).Scalar,
            getattr(operator, name),
        )
    },
    # Sizes.
    operator.add: infix("+", SUM),
    operator.sub: infix("-", SUM),
    operator.mul: infix("*", PRODUCT),
    operator.floordiv: infix("//", PRODUCT),
    operator.truediv: infix("/", PRODUCT),
    operator.mod: infix("%", PRODUCT),
    operator.neg: prefixed("-"),
    operator.pow: power,
    torch.sym_float: as_float,
    math.trunc: truncated,
    math.floor: rounded_down,
    math.ceil: rounded_up,
    round: to_nearest,
    operator.and_: infix("&", AND),
    operator.or_: infix("|", OR),
}
