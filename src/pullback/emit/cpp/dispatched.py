"""Calls of ops that do not come with torch: through the dispatcher, by their names."""

from __future__ import annotations

import re

from torch import fx

from pullback.emit.cpp.headers import split_types
from pullback.emit.cpp.nodes import node_place, op_arguments, ops_inside
from pullback.emit.cpp.values import CppWriter, no_cpp_form, quoted
from pullback.function.slots import op_schema
from pullback.graph.cost import op_of
from pullback.graph.spelling.expressions import ATOM, Expression

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


def dispatched(writer: CppWriter, node: fx.Node) -> Expression:
    """A call through the dispatcher, which finds the op of whatever library has been loaded."""
    op = op_of(node)
    schema = op_schema(op)
    takes_text, _, gives_text = str(schema).partition("(")[2].rpartition(") -> ")
    kinds = [_kind(each, node) for each in _types(takes_text) if each != "*"]
    gives = [_kind(each, node) for each in _types(gives_text.strip("()"))]
    given = zip(op_arguments(node), kinds, strict=True)
    texts = [writer.argument(value, kind, is_exact=True) for value, kind in given]
    results = ["std::vector<at::Tensor>" if g == "at::TensorList" else g for g in gives]
    result = results[0] if len(results) == 1 else f"std::tuple<{', '.join(results)}>"
    takes = ", ".join(f"const {k}&" if _is_reference(k) else k for k in kinds)
    writer.includes.add("ATen/core/dispatch/Dispatcher.h")
    writer.helpers.add("call_op")
    name = f"{quoted(schema.name)}, {quoted(schema.overload_name)}"
    text = f"call_op<{result}({takes})>({', '.join([name, *texts])})"
    return Expression(text, ATOM, ops_inside(node, writer))


def _is_reference(kind: str) -> bool:
    return kind.removeprefix("std::optional<").removesuffix(">") in _BY_REFERENCE or (
        kind in _BY_REFERENCE
    )


def _types(text: str) -> list[str]:
    """The types in a list of the parameters or results of a schema."""
    parts = [re.sub(r"\(.*?\)", "", part) for part in split_types(text)]  # `Tensor(a)`: an alias
    return [re.sub(r"\[\d+\]", "[]", part.split(" ")[0]) for part in parts]


def _kind(text: str, node: fx.Node) -> str:
    """The type that C++ has for a type of a schema."""
    kind = _TYPES.get(text, "")
    if not kind and text.endswith("?") and text[:-1] in _TYPES:
        kind = f"std::optional<{_TYPES[text[:-1]]}>"
    if not kind:
        raise no_cpp_form(f"an op that takes `{text}`", f"`{op_of(node)}`", node_place(node))
    return kind
