"""Ops with a form that reads better than a call, or that a call would get wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from pullback.emit.cpp.headers import ways_of
from pullback.emit.cpp.nodes import is_tensor, ops_inside
from pullback.emit.cpp.values import (
    ATOM,
    BITS,
    COMPARED,
    LOWEST,
    PRODUCT,
    SUM,
    UNARY,
    Expression,
    Writer,
)
from pullback.graph.values import aten

Form = Callable[..., Expression | None]


def _binary(sign: str, level: int, *, alpha: bool = False, helper: str = "number") -> Form:
    """An operator. It binds to the left: another order of a sum would be another rounding.

    `helper` is what makes a tensor of a number on its right side.
    """

    def write(writer: Writer, node: fx.Node, a: Any, b: Any, *rest: Any) -> Expression | None:
        if (alpha and rest != (1,)) or not is_tensor(a):
            return None
        left = writer.node(a).within(level)
        if is_tensor(b):
            text = writer.node(b).within(level + 1)
        else:
            text = writer.number(b, a, helper) or writer.argument(b, "at::Scalar")
            text = f"({text})" if text.startswith("-") else text
        return Expression(f"{left} {sign} {text}", level, ops_inside(node, writer))

    return write


def _unary(sign: str) -> Form:
    def write(writer: Writer, node: fx.Node, a: Any) -> Expression:
        return Expression(f"{sign}{writer.node(a).within(UNARY)}", UNARY, ops_inside(node, writer))

    return write


def _reshape(writer: Writer, node: fx.Node, a: Any, sizes: Any) -> Expression:
    """A view, whatever the strides of the tensor are in this call: else a copy."""
    text = writer.argument(list(sizes), "c10::SymIntArrayRef", is_exact=True)
    owner = writer.node(a).within(ATOM)
    return Expression(f"{owner}.reshape_symint({text})", ATOM, ops_inside(node, writer))


def _size(writer: Writer, node: fx.Node, a: Any, dim: Any) -> Expression:
    return Expression(f"{writer.node(a).within(ATOM)}.sym_size({dim})")


def _stride(writer: Writer, node: fx.Node, a: Any, dim: Any) -> Expression:
    return Expression(f"{writer.node(a).within(ATOM)}.sym_stride({dim})")


def _numel(writer: Writer, node: fx.Node, a: Any) -> Expression:
    return Expression(f"{writer.node(a).within(ATOM)}.sym_numel()")


def _offset(writer: Writer, node: fx.Node, a: Any) -> Expression:
    return Expression(f"{writer.node(a).within(ATOM)}.sym_storage_offset()")


def _scalar_op(overload: Any) -> Form:
    """The form of an op for a number in the place of a tensor: it exists under another overload."""

    def write(writer: Writer, node: fx.Node, *given: Any) -> Expression | None:
        if is_tensor(given[1]):
            return None
        base, name = overload._schema.name.partition("::")[2], overload._schema.overload_name
        ways = ways_of(base, name)
        if ways is None or ways.method is None:
            return None
        kinds = ways.method.takes[1 : len(given)]
        pairs = zip(given[1:], kinds, strict=True)
        texts = [writer.argument(value, kind, is_exact=True) for value, kind in pairs]
        owner = writer.node(given[0]).within(ATOM)
        return Expression(f"{owner}.{ways.method.name}({', '.join(texts)})", ATOM, 1)

    return write


def _reversed(writer: Writer, node: fx.Node, a: Any, b: Any, alpha: Any = 1) -> Expression | None:
    """`1 - x`, of which PyTorch makes an op of its own."""
    left = writer.node(b).within(SUM) if is_tensor(b) else writer.number(b, a)
    if not left or alpha != 1:
        return None
    return Expression(f"{left} - {writer.node(a).within(SUM + 1)}", SUM, ops_inside(node, writer))


def _where(writer: Writer, node: fx.Node, mask: Any, *sides: Any) -> Expression | None:
    """A choice between a tensor and a number."""
    like = next(side for side in sides if is_tensor(side))
    texts = [
        writer.node(side).text if is_tensor(side) else writer.number(side, like, "scalar")
        for side in sides
    ]
    if not all(texts):
        return None
    writer.includes.add("ATen/ops/where.h")
    given = ", ".join((writer.node(mask).text, *texts))
    return Expression(f"at::where({given})", ATOM, ops_inside(node, writer))


def _either(*forms: Form) -> Form:
    def write(writer: Writer, node: fx.Node, *given: Any) -> Expression | None:
        return next((found for form in forms if (found := form(writer, node, *given))), None)

    return write


def _added(sign: str, overload: Any) -> Form:
    return _either(_binary(sign, SUM, alpha=True), _scalar_op(overload))


def _compared(sign: str) -> Form:
    return _binary(sign, COMPARED, helper="scalar")


OWN: dict[Any, Form] = {
    aten.add.Tensor: _added("+", aten.add.Scalar),
    aten.add.Scalar: _binary("+", SUM, alpha=True),
    aten.sub.Tensor: _added("-", aten.sub.Scalar),
    aten.sub.Scalar: _binary("-", SUM, alpha=True),
    aten.rsub.Tensor: _reversed,
    aten.rsub.Scalar: _reversed,
    aten.mul.Tensor: _binary("*", PRODUCT),
    aten.mul.Scalar: _binary("*", PRODUCT),
    aten.div.Tensor: _binary("/", PRODUCT),
    aten.div.Scalar: _binary("/", PRODUCT),
    aten.div.Tensor_mode: _scalar_op(aten.div.Scalar_mode),
    aten.remainder.Tensor: _scalar_op(aten.remainder.Scalar),
    aten.fmod.Tensor: _scalar_op(aten.fmod.Scalar),
    aten.pow.Tensor_Tensor: _scalar_op(aten.pow.Tensor_Scalar),
    aten.neg.default: _unary("-"),
    aten.bitwise_not.default: _unary("~"),
    aten.bitwise_and.Tensor: _binary("&", BITS),
    aten.bitwise_or.Tensor: _binary("|", LOWEST),
    aten.eq.Tensor: _compared("=="),
    aten.eq.Scalar: _compared("=="),
    aten.ne.Tensor: _compared("!="),
    aten.ne.Scalar: _compared("!="),
    aten.lt.Tensor: _compared("<"),
    aten.lt.Scalar: _compared("<"),
    aten.le.Tensor: _compared("<="),
    aten.le.Scalar: _compared("<="),
    aten.gt.Tensor: _compared(">"),
    aten.gt.Scalar: _compared(">"),
    aten.ge.Tensor: _compared(">="),
    aten.ge.Scalar: _compared(">="),
    aten.where.ScalarSelf: _where,
    aten.where.ScalarOther: _where,
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.sym_size.int: _size,
    aten.sym_stride.int: _stride,
    aten.sym_numel.default: _numel,
    aten.sym_storage_offset.default: _offset,
}
"""The forms, by op: each gives None where it has none for these arguments."""
