"""Ops with a form that reads better than a call, or that a call would get wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from pullback.emit.cpp.headers import call_forms
from pullback.emit.cpp.nodes import is_tensor_node, ops_inside
from pullback.emit.cpp.values import BITS, COMPARED, LOWEST, PRODUCT, SUM, UNARY, CppWriter, bare
from pullback.function.slots import op_schema
from pullback.graph.spelling.expressions import ATOM, Expression
from pullback.graph.spelling.operators import SIGNS
from pullback.graph.values import aten

Form = Callable[..., Expression | None]


def _binary(sign: str, level: int, *, alpha: bool = False, helper: str = "number") -> Form:
    """An operator. It binds to the left: another order of a sum would be another rounding.

    `helper` is what makes a tensor of a number on its right side.
    """

    def write(writer: CppWriter, node: fx.Node, a: Any, b: Any, *rest: Any) -> Expression | None:
        if (alpha and rest != (1,)) or not is_tensor_node(a):
            return None
        left = writer.node(a).within(level)
        if is_tensor_node(b):
            text = writer.node(b).within(level + 1)
        else:
            text = writer.number(b, a, helper) or writer.argument(b, "at::Scalar")
            text = f"({text})" if text.startswith("-") else text
        return Expression(f"{left} {sign} {text}", level, ops_inside(node, writer))

    return write


def _unary(sign: str) -> Form:
    def write(writer: CppWriter, node: fx.Node, a: Any) -> Expression:
        return Expression(f"{sign}{writer.node(a).within(UNARY)}", UNARY, ops_inside(node, writer))

    return write


def _reshape(writer: CppWriter, node: fx.Node, a: Any, sizes: Any) -> Expression:
    """A view, whatever the strides of the tensor are in this call: else a copy."""
    text = writer.argument(list(sizes), "c10::SymIntArrayRef", is_exact=True)
    owner = writer.node(a).within(ATOM)
    return Expression(f"{owner}.reshape_symint({text})", ATOM, ops_inside(node, writer))


def _property(call: str) -> Form:
    """A size, or another number that a tensor has."""

    def write(writer: CppWriter, node: fx.Node, a: Any, *rest: Any) -> Expression:
        return bare(f"{writer.node(a).within(ATOM)}.{call}({', '.join(map(str, rest))})")

    return write


def _scalar_op(overload: Any) -> Form:
    """The form of an op for a number in the place of a tensor: it exists under another overload."""

    def write(writer: CppWriter, node: fx.Node, *given: Any) -> Expression | None:
        if is_tensor_node(given[1]):
            return None
        base, name = op_schema(overload).name.partition("::")[2], op_schema(overload).overload_name
        ways = call_forms(base, name)
        if ways is None or ways.method is None:
            return None
        kinds = ways.method.takes[1 : len(given)]
        pairs = zip(given[1:], kinds, strict=True)
        texts = [writer.argument(value, kind, is_exact=True) for value, kind in pairs]
        owner = writer.node(given[0]).within(ATOM)
        return Expression(f"{owner}.{ways.method.name}({', '.join(texts)})", ATOM, 1)

    return write


def _reversed(
    writer: CppWriter, node: fx.Node, a: Any, b: Any, alpha: Any = 1
) -> Expression | None:
    """`1 - x`, of which PyTorch makes an op of its own."""
    left = writer.node(b).within(SUM) if is_tensor_node(b) else writer.number(b, a)
    if not left or alpha != 1:
        return None
    return Expression(f"{left} - {writer.node(a).within(SUM + 1)}", SUM, ops_inside(node, writer))


def _where(writer: CppWriter, node: fx.Node, mask: Any, *sides: Any) -> Expression | None:
    """A choice between a tensor and a number."""
    like = next(side for side in sides if is_tensor_node(side))
    texts = [
        writer.node(side).text if is_tensor_node(side) else writer.number(side, like, "scalar")
        for side in sides
    ]
    if not all(texts):
        return None
    writer.includes.add("ATen/ops/where.h")
    given = ", ".join((writer.node(mask).text, *texts))
    return Expression(f"at::where({given})", ATOM, ops_inside(node, writer))


def _either(*forms: Form) -> Form:
    def write(writer: CppWriter, node: fx.Node, *given: Any) -> Expression | None:
        return next((found for form in forms if (found := form(writer, node, *given))), None)

    return write


def _added(sign: str, overload: Any) -> Form:
    return _either(_binary(sign, SUM, alpha=True), _scalar_op(overload))


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
    **{
        op: _binary(sign, COMPARED, helper="scalar")
        for name, sign in SIGNS.items()
        for op in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
    },
    aten.where.ScalarSelf: _where,
    aten.where.ScalarOther: _where,
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.sym_size.int: _property("sym_size"),
    aten.sym_stride.int: _property("sym_stride"),
    aten.sym_numel.default: _property("sym_numel"),
    aten.sym_storage_offset.default: _property("sym_storage_offset"),
}
"""The forms, by op: each gives None where it has none for these arguments."""
