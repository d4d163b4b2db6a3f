"""Calls in C++: how each node of a graph is written.

In this order: an operator (`a * b`), arithmetic of sizes, a method (`x.sin()`), a function
(`at::where(...)`), the struct of the op (`at::_ops::...::call`), which every op of ATen has; and a
call through the dispatcher for the ops of others.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from pullback.emit.cpp.dispatched import dispatched
from pullback.emit.cpp.headers import Callee, CallForms, call_forms, rivals
from pullback.emit.cpp.nodes import node_place, op_arguments, ops_inside
from pullback.emit.cpp.numbers import arithmetic
from pullback.emit.cpp.operators import OWN
from pullback.emit.cpp.values import CppWriter, is_number_argument, no_cpp_form
from pullback.function.slots import op_schema
from pullback.graph.cost import op_of
from pullback.graph.spelling.expressions import ATOM, Expression


def spell_cpp(writer: CppWriter, node: fx.Node) -> Expression:
    """The expression that computes `node`."""
    if node.target is operator.getitem:
        return _result(writer, node)
    op = op_of(node)
    if op is None:
        return arithmetic(writer, node)
    own = OWN.get(op)
    written = own(writer, node, *op_arguments(node)) if own else None
    if written is not None:
        return written
    return _called(writer, node)


# ---- ATen ----


def _called(writer: CppWriter, node: fx.Node) -> Expression:
    op = op_of(node)
    base, overload = op_schema(op).name.partition("::")[2], op_schema(op).overload_name
    ways = call_forms(base, overload) if op.namespace == "aten" else None
    if ways is None:
        return dispatched(writer, node)
    given = op_arguments(node)
    if _has_options(op):
        return _with_options(writer, node, base, ways, given)
    if ways.method is not None and not is_number_argument(given[0]):
        return _method(writer, node, base, ways.method, given)
    if ways.function is not None:
        writer.includes.add(f"ATen/ops/{base}.h")
        texts = _texts(writer, node, base, ways.function, given, is_method=False)
        return Expression(
            f"at::{ways.function.name}({', '.join(texts)})", ATOM, ops_inside(node, writer)
        )
    writer.includes.add(f"ATen/ops/{base}_ops.h")
    pairs = zip(given, ways.struct.takes, strict=True)
    texts = [writer.argument(value, kind, is_exact=True) for value, kind in pairs]
    return Expression(f"{ways.struct.name}({', '.join(texts)})", ATOM, ops_inside(node, writer))


def _method(
    writer: CppWriter, node: fx.Node, base: str, callee: Callee, given: list[Any]
) -> Expression:
    owner = writer.node(given[0]).within(ATOM)
    texts = _texts(writer, node, base, callee, given, is_method=True)
    return Expression(f"{owner}.{callee.name}({', '.join(texts)})", ATOM, ops_inside(node, writer))


def _texts(
    writer: CppWriter,
    node: fx.Node,
    base: str,
    callee: Callee,
    given: list[Any],
    *,
    is_method: bool,
) -> list[str]:
    """The arguments of a call, without those at its end that are as they are by default."""
    parameters = op_schema(op_of(node)).arguments
    count = len(given)
    while count > callee.needless and _is_default(parameters[count - 1], given[count - 1]):
        count -= 1
    others = rivals(callee, base, is_method=is_method)
    skip = 1 if is_method else 0
    kinds = callee.takes[skip:count]
    exact = any(_could_mean(other, kinds) for other in others)
    pairs = zip(given[skip:count], kinds, strict=True)
    return [writer.argument(value, kind, is_exact=exact) for value, kind in pairs]


def _could_mean(other: tuple[str, ...], kinds: tuple[str, ...]) -> bool:
    """Whether another function could be meant by these arguments, were their types not named."""
    if len(other) < len(kinds):
        return False
    return all(
        a == b or not _is_plain(a) or not _is_plain(b) for a, b in zip(kinds, other, strict=False)
    )


def _is_plain(kind: str) -> bool:
    """Whether an argument of this type is never taken for one of another plain type."""
    return kind == "at::Tensor"


def _is_default(parameter: Any, value: Any) -> bool:
    if isinstance(value, fx.Node) or not parameter.has_default_value():
        return False
    default = parameter.default_value
    return type(default) is type(value) and default == value


# ---- dtype, layout, device, pin_memory ----

OPTIONS = ("dtype", "layout", "device", "pin_memory")


def _has_options(op: Any) -> bool:
    names = [parameter.name for parameter in op_schema(op).arguments]
    return all(name in names for name in OPTIONS)


def _with_options(
    writer: CppWriter, node: fx.Node, base: str, ways: CallForms, given: list[Any]
) -> Expression:
    """A call of an op that says what kind of tensor it makes: `at::zeros({n}, x.options())`."""
    names = [parameter.name for parameter in op_schema(op_of(node)).arguments]
    values = dict(zip(names, given, strict=True))
    start = names.index("dtype")
    callee = ways.function or ways.method
    if callee is None:
        raise no_cpp_form("an op without a function in C++", f"`{base}`", node_place(node))
    is_method = ways.function is None
    before = zip(given[:start], callee.takes[:start], strict=True)
    texts = [writer.argument(value, kind, is_exact=True) for value, kind in before]
    options = _options(writer, values, is_like="self" in names)
    parameters = op_schema(op_of(node)).arguments
    last = zip(given[start + 4 :], callee.takes[start + 4 :], parameters[start + 4 :], strict=True)
    behind = list(last)
    rest = [writer.argument(value, kind, is_exact=True) for value, kind, _ in behind]
    if all(_is_default(parameter, value) for value, _, parameter in behind):
        rest = []
    if options or rest:
        texts += [options or "at::TensorOptions()", *rest]
    if is_method:
        head, texts = f"{texts[0]}.{callee.name}", texts[1:]
    elif base == "full" and not given[0]:  # which is made in one step
        writer.includes.add("ATen/ops/scalar_tensor.h")
        head, texts = "at::scalar_tensor", texts[1:]
    else:
        writer.includes.add(f"ATen/ops/{base}.h")
        head = f"at::{callee.name}"
    return Expression(f"{head}({', '.join(texts)})", ATOM, ops_inside(node, writer))


def _options(writer: CppWriter, values: dict[str, Any], *, is_like: bool) -> str:
    """The options that a new tensor is made with; nothing where they are the usual ones."""
    dtype, layout, device = values["dtype"], values["layout"], values["device"]
    if layout not in (None, torch.strided):
        raise no_cpp_form("a tensor that is not dense", f"{layout}")
    device = None if device is None else torch.device(device)
    if is_like and device is not None and writer.name_like(device=device):
        device = None  # as that of the tensor that it is like
    if dtype is None and device is None:
        return ""
    if device is not None and dtype is not None:
        alike = (
            writer.name_like(dtype=dtype, device=device)
            if dtype.is_floating_point or dtype.is_complex
            else ""
        )
        if alike:
            return f"{alike}.options()"
        near = writer.name_like(device=device)
        if near:
            return f"{near}.options().dtype({writer.dtype(dtype)})"
    text = "at::TensorOptions()"
    text += "" if dtype is None else f".dtype({writer.dtype(dtype)})"
    return text + ("" if device is None else f".device({writer.device(device)})")


# ---- one of several results ----


def _result(writer: CppWriter, node: fx.Node) -> Expression:
    source, index = node.args
    if not isinstance(source, fx.Node) or not isinstance(index, int):
        raise no_cpp_form("a part of something that is no result", f"`{node}`", node_place(node))
    inner = writer.node(source)
    op = op_of(source)
    if op is not None and len(op_schema(op).returns) > 1:
        return Expression(f"std::get<{index}>({inner.text})", ATOM, inner.size)
    # Checked: a list may be shorter in another call.
    return Expression(f"{inner.within(ATOM)}.at({index})", ATOM, inner.size)
