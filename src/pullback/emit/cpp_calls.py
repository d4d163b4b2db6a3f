"""Calls in C++: how each node of a graph is written.

In this order: an operator (`a * b`), arithmetic of sizes, a method (`x.sin()`), a function
(`at::where(...)`), the struct of the op (`at::_ops::...::call`), which every op of ATen has; and for
the ops of others, a call through the dispatcher.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from pullback.emit.cpp_values import (
    ATOM,
    BITS,
    COMPARED,
    LOWEST,
    PRODUCT,
    SUM,
    UNARY,
    Expression,
    Writer,
    is_number,
    quoted,
    unwritable,
)
from pullback.emit.headers import Callee, Ways, rivals, ways_of
from pullback.graph.cost import op_of
from pullback.graph.values import aten, value_of

def spell(writer: Writer, node: fx.Node) -> Expression:
    """The expression that computes `node`."""
    if node.target is operator.getitem:
        return _result(writer, node)
    op = op_of(node)
    if op is None:
        return _arithmetic(writer, node)
    own = _OWN.get(op)
    written = own(writer, node, *arguments_of(node)) if own else None
    if written is not None:
        return written
    return _called(writer, node)


def _inner(node: fx.Node, writer: Writer) -> int:
    """How many ops stand inside the arguments of `node`."""
    return 1 + sum(writer.node(arg).size for arg in node.all_input_nodes if arg in writer.inlined)


def arguments_of(node: fx.Node) -> list[Any]:
    """Every argument of the op that `node` calls, defaults included, in the order of its schema."""
    op = op_of(node)
    given = []
    for place, parameter in enumerate(op._schema.arguments):
        if parameter.name in node.kwargs:
            given.append(node.kwargs[parameter.name])
        elif place < len(node.args) and not parameter.kwarg_only:
            given.append(node.args[place])
        else:
            given.append(parameter.default_value if parameter.has_default_value() else None)
    return given


# ---- ATen ----


def _called(writer: Writer, node: fx.Node) -> Expression:
    op = op_of(node)
    base, overload = op._schema.name.partition("::")[2], op._schema.overload_name
    ways = ways_of(base, overload) if op.namespace == "aten" else None
    if ways is None:
        return _dispatched(writer, node)
    given = arguments_of(node)
    if _has_options(op):
        return _with_options(writer, node, base, ways, given)
    if ways.method is not None and not is_number(given[0]):
        return _method(writer, node, base, ways.method, given)
    if ways.function is not None:
        writer.includes.add(f"ATen/ops/{base}.h")
        texts = _texts(writer, node, base, ways.function, given, is_method=False)
        return Expression(f"at::{ways.function.name}({', '.join(texts)})", ATOM, _inner(node, writer))
    writer.includes.add(f"ATen/ops/{base}_ops.h")
    pairs = zip(given, ways.struct.takes, strict=True)
    texts = [writer.argument(value, kind, is_exact=True) for value, kind in pairs]
    return Expression(f"{ways.struct.name}({', '.join(texts)})", ATOM, _inner(node, writer))


def _method(
    writer: Writer, node: fx.Node, base: str, callee: Callee, given: list[Any]
) -> Expression:
    owner = writer.node(given[0]).within(ATOM)
    texts = _texts(writer, node, base, callee, given, is_method=True)
    return Expression(f"{owner}.{callee.name}({', '.join(texts)})", ATOM, _inner(node, writer))


def _texts(
    writer: Writer, node: fx.Node, base: str, callee: Callee, given: list[Any], *, is_method: bool
) -> list[str]:
    """The arguments of a call, without those at its end that are as they are by default."""
    parameters = op_of(node)._schema.arguments
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
    return all(a == b or not _is_plain(a) or not _is_plain(b) for a, b in zip(kinds, other, strict=False))


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
    names = [parameter.name for parameter in op._schema.arguments]
    return all(name in names for name in OPTIONS)


def _with_options(
    writer: Writer, node: fx.Node, base: str, ways: Ways, given: list[Any]
) -> Expression:
    """A call of an op that says what kind of tensor it makes: `at::zeros({n}, x.options())`."""
    names = [parameter.name for parameter in op_of(node)._schema.arguments]
    values = dict(zip(names, given, strict=True))
    start = names.index("dtype")
    callee = ways.function or ways.method
    if callee is None:
        raise unwritable("an op without a function in C++", f"`{base}`", _place(node))
    is_method = ways.function is None
    before = zip(given[:start], callee.takes[:start], strict=True)
    texts = [writer.argument(value, kind, is_exact=True) for value, kind in before]
    options = _options(writer, values, is_like="self" in names)
    rest = [
        writer.argument(value, kind, is_exact=True)
        for value, kind in zip(given[start + 4 :], callee.takes[start + 4 :], strict=True)
    ]
    if rest and all(
        _is_default(parameter, value)
        for parameter, value in zip(
            op_of(node)._schema.arguments[start + 4 :], given[start + 4 :], strict=True
        )
    ):
        rest = []
    if options or rest:
        texts += [options or "at::TensorOptions()", *rest]
    if is_method:
        head, texts = f"{texts[0]}.{callee.name}", texts[1:]
    else:
        writer.includes.add(f"ATen/ops/{base}.h")
        head = f"at::{callee.name}"
    return Expression(f"{head}({', '.join(texts)})", ATOM, _inner(node, writer))


def _options(writer: Writer, values: dict[str, Any], *, is_like: bool) -> str:
    """The options that a new tensor is made with; nothing where they are the usual ones."""
    dtype, layout, device = values["dtype"], values["layout"], values["device"]
    if layout not in (None, torch.strided):
        raise unwritable("a tensor that is not dense", f"{layout}")
    device = None if device is None else torch.device(device)
    if is_like and device is not None and writer.like(None, device):
        device = None  # as that of the tensor that it is like
    if dtype is None and device is None:
        return ""
    if device is not None and dtype is not None:
        twin = writer.like(dtype, device) if dtype.is_floating_point or dtype.is_complex else ""
        if twin:
            return f"{twin}.options()"
        near = writer.like(None, device)
        if near:
            return f"{near}.options().dtype({writer.dtype(dtype)})"
    text = "at::TensorOptions()"
    text += "" if dtype is None else f".dtype({writer.dtype(dtype)})"
    return text + ("" if device is None else f".device({writer.device(device)})")


# ---- the ops of others ----

_TYPES = {
    "Tensor": "at::Tensor",
    "int": "int64_t",
    "SymInt": "c10::SymInt",
    "float": "double",
    "bool": "bool",
    "str": "c10::string_view",
    "Scalar": "at::Scalar",
    "ScalarType": "at::ScalarType",
    "Layout": "at::Layout",
    "Device": "at::Device",
    "MemoryFormat": "at::MemoryFormat",
    "int[]": "at::IntArrayRef",
    "int[]?": "at::OptionalIntArrayRef",
    "SymInt[]": "c10::SymIntArrayRef",
    "SymInt[]?": "at::OptionalSymIntArrayRef",
    "float[]": "at::ArrayRef<double>",
    "bool[]": "at::ArrayRef<bool>",
    "Tensor[]": "at::TensorList",
    "Tensor?[]": "c10::List<std::optional<at::Tensor>>",
}
"""The types of C++ for the types of a schema."""

_BY_REFERENCE = ("at::Tensor", "at::Scalar", "c10::List<std::optional<at::Tensor>>")


def _dispatched(writer: Writer, node: fx.Node) -> Expression:
    """A call through the dispatcher, which finds the op of whatever library has been loaded."""
    op = op_of(node)
    schema = op._schema
    takes_text, _, gives_text = str(schema).partition("(")[2].rpartition(") -> ")
    kinds = [_kind(each, node) for each in _split(takes_text) if each != "*"]
    gives = [_kind(each, node) for each in _split(gives_text.strip("()"))]
    given = zip(arguments_of(node), kinds, strict=True)
    texts = [writer.argument(value, kind, is_exact=True) for value, kind in given]
    results = ["std::vector<at::Tensor>" if g == "at::TensorList" else g for g in gives]
    result = results[0] if len(results) == 1 else f"std::tuple<{', '.join(results)}>"
    takes = ", ".join(f"const {k}&" if _is_reference(k) else k for k in kinds)
    writer.includes.add("ATen/core/dispatch/Dispatcher.h")
    writer.helpers.add("call_op")
    name = f"{quoted(schema.name)}, {quoted(schema.overload_name)}"
    text = f"call_op<{result}({takes})>({', '.join([name, *texts])})"
    return Expression(text, ATOM, _inner(node, writer))


def _is_reference(kind: str) -> bool:
    return kind.removeprefix("std::optional<").removesuffix(">") in _BY_REFERENCE or (
        kind in _BY_REFERENCE
    )


def _split(text: str) -> list[str]:
    """The types in a list of the parameters or results of a schema."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    bare = [re.sub(r"\(.*?\)", "", part).strip() for part in found]  # `Tensor(a)`: an alias
    return [re.sub(r"\[\d+\]", "[]", part.split(" ")[0]) for part in bare if part]


def _kind(text: str, node: fx.Node) -> str:
    """The type that C++ has for a type of a schema."""
    kind = _TYPES.get(text, "")
    if not kind and text.endswith("?") and text[:-1] in _TYPES:
        kind = f"std::optional<{_TYPES[text[:-1]]}>"
    if not kind:
        raise unwritable(f"an op that takes `{text}`", f"`{op_of(node)}`", _place(node))
    return kind


def _place(node: fx.Node) -> str:
    return str(node.meta.get("place", ""))


# ---- one of several results ----


def _result(writer: Writer, node: fx.Node) -> Expression:
    source, index = node.args
    if not isinstance(source, fx.Node) or not isinstance(index, int):
        raise unwritable("a part of something that is no result", f"`{node}`", _place(node))
    inner = writer.node(source)
    op = op_of(source)
    if op is not None and len(op._schema.returns) > 1:
        return Expression(f"std::get<{index}>({inner.text})", ATOM, inner.size)
    # Checked: a list may be shorter in another call.
    return Expression(f"{inner.within(ATOM)}.at({index})", ATOM, inner.size)


# ---- numbers ----


def _arithmetic(writer: Writer, node: fx.Node) -> Expression:
    """Arithmetic of sizes and other plain numbers."""
    known = _NUMBERS.get(node.target)
    if known is None:
        name = getattr(node.target, "__name__", str(node.target))
        raise unwritable("a call that is no op of PyTorch", f"`{name}`", _place(node))
    is_real = isinstance(node.meta.get("val"), torch.SymFloat | float)
    parts = [
        _number(writer, arg, is_first=place == 0, is_real=is_real)
        for place, arg in enumerate(node.args)
    ]
    return known(writer, node, *parts)


def _number(writer: Writer, arg: Any, *, is_first: bool, is_real: bool) -> Expression:
    if is_real and isinstance(value_of(arg), torch.SymInt | int):
        arg = float(arg) if isinstance(arg, int) else arg
        if not isinstance(arg, float):
            return Expression(f"c10::SymFloat({_whole(writer, arg)})")
    if isinstance(arg, fx.Node):
        return writer.node(arg)
    if isinstance(arg, torch.SymInt):
        return Expression(writer.source_of(arg))
    if isinstance(arg, float):
        return Expression(f"c10::SymFloat({arg!r})")
    return Expression(f"c10::SymInt({arg})" if is_first or arg < 0 else str(arg))


def _whole(writer: Writer, arg: Any) -> str:
    return writer.node(arg).text if isinstance(arg, fx.Node) else writer.source_of(arg)


def _infix(sign: str, level: int, *, commutes: bool) -> Callable[..., Expression]:
    def write(writer: Writer, node: fx.Node, a: Expression, b: Expression) -> Expression:
        right = level if commutes else level + 1
        return Expression(f"{a.within(level)} {sign} {b.within(right)}", level)

    return write


def _helper(name: str) -> Callable[..., Expression]:
    def write(writer: Writer, node: fx.Node, *parts: Expression) -> Expression:
        writer.helpers.add(name)
        return Expression(f"{name}({', '.join(part.text for part in parts)})")

    return write


def _call_of(pattern: str) -> Callable[..., Expression]:
    def write(writer: Writer, node: fx.Node, *parts: Expression) -> Expression:
        return Expression(pattern.format(*(part.within(ATOM) for part in parts)))

    return write


def _power(writer: Writer, node: fx.Node, a: Expression, b: Expression) -> Expression:
    if isinstance(node.meta.get("val"), torch.SymFloat | float):
        return _helper("power")(writer, node, a, b)
    exponent = node.args[1]
    if not isinstance(exponent, int) or not 0 < exponent <= 8:
        raise unwritable("a power of a size", f"`{node}`", _place(node))
    return Expression(" * ".join([a.within(PRODUCT)] * exponent), PRODUCT)


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


# ---- forms of their own ----

Form = Callable[..., Expression | None]


def _binary(sign: str, level: int, *, alpha: bool = False) -> Form:
    """An operator. It binds to the left: another order of a sum would be another rounding."""

    def write(writer: Writer, node: fx.Node, a: Any, b: Any, *rest: Any) -> Expression | None:
        if (alpha and rest != (1,)) or not _is_tensor(a):
            return None
        left = writer.node(a).within(level)
        if _is_tensor(b):
            text = writer.node(b).within(level + 1)
        else:
            text = writer.argument(b, "at::Scalar")
            text = f"({text})" if text.startswith("-") else text
        return Expression(f"{left} {sign} {text}", level, _inner(node, writer))

    return write


def _is_tensor(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), Tensor)


def _unary(sign: str) -> Form:
    def write(writer: Writer, node: fx.Node, a: Any) -> Expression:
        return Expression(f"{sign}{writer.node(a).within(UNARY)}", UNARY, _inner(node, writer))

    return write


def _reshape(writer: Writer, node: fx.Node, a: Any, sizes: Any) -> Expression:
    """A view, whatever the strides of the tensor are in this call: else a copy."""
    text = writer.argument(list(sizes), "c10::SymIntArrayRef", is_exact=True)
    owner = writer.node(a).within(ATOM)
    return Expression(f"{owner}.reshape_symint({text})", ATOM, _inner(node, writer))


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
        if _is_tensor(given[1]):
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


def _either(*forms: Form) -> Form:
    def write(writer: Writer, node: fx.Node, *given: Any) -> Expression | None:
        return next((found for form in forms if (found := form(writer, node, *given))), None)

    return write


def _added(sign: str, overload: Any) -> Form:
    return _either(_binary(sign, SUM, alpha=True), _scalar_op(overload))


def _compared(sign: str) -> Form:
    return _binary(sign, COMPARED)


_OWN: dict[Any, Form] = {
    aten.add.Tensor: _added("+", aten.add.Scalar),
    aten.add.Scalar: _binary("+", SUM, alpha=True),
    aten.sub.Tensor: _added("-", aten.sub.Scalar),
    aten.sub.Scalar: _binary("-", SUM, alpha=True),
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
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.sym_size.int: _size,
    aten.sym_stride.int: _stride,
    aten.sym_numel.default: _numel,
    aten.sym_storage_offset.default: _offset,
}
"""Ops with a form that reads better than a call, or that a call would get wrong."""
