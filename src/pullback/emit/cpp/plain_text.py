"""Plain arguments in C++: their types, what is said of them, how other values are refused."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pullback.capture.joint import CaptureInput
from pullback.emit.cpp.values import DTYPES, Named, literal, quoted

KINDS = {
    bool: ("bool", "bool", "toBool()"),
    int: ("int", "int64_t", "toInt()"),
    float: ("float", "double", "toDouble()"),
    str: ("str", "c10::string_view", "toStringView()"),
    torch.dtype: ("ScalarType", "at::ScalarType", "toScalarType()"),
}
"""The type of an argument in a schema, in C++, and how a saved value of it is read."""

LISTS = {
    int: ("int[]", "at::IntArrayRef", ""),
    float: ("float[]", "at::ArrayRef<double>", ""),
    bool: ("bool[]", "c10::List<bool>", ""),
}
ABSENT = {
    "Tensor": ("Tensor?", "const std::optional<at::Tensor>&", ""),
    "bool": ("bool?", "std::optional<bool>", ""),
    "int": ("int?", "std::optional<int64_t>", ""),
    "float": ("float?", "std::optional<double>", ""),
    "str": ("str?", "std::optional<c10::string_view>", ""),
    "dtype": ("ScalarType?", "std::optional<at::ScalarType>", ""),
}
"""The same where the value is None, by the type that the parameter is annotated with."""

SCHEMA_DTYPES = {
    torch.float64: "double",
    torch.float32: "float",
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.int64: "long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "char",
    torch.uint8: "byte",
    torch.bool: "bool",
}
"""The dtypes that can be a default in a schema."""


@dataclass(frozen=True, slots=True)
class PlainArgument:
    """One plain argument: its name, the value in the examples, the user's default if there is one.

    `place` counts the arguments of the program. `own_name` is the user's name for it, `annotated`
    the type that the user declares, which says what a None stands for. `is_keyword` says that the
    op takes it by name alone.
    """

    name: str
    value: Any
    default: Any
    place: int
    own_name: str
    annotated: str = ""
    is_keyword: bool = False
    is_free: bool = False

    @property
    def kind(self) -> tuple[str, str, str]:
        """The type in the schema, in C++, and how a saved value of it is read."""
        if self.value is None:
            words = re.findall(r"\w+", self.annotated)
            return ABSENT[next((word for word in ABSENT if word in words), "Tensor")]
        if self.is_infinite:
            return ABSENT["float"]
        if isinstance(self.value, list | tuple):
            return LISTS[type(self.value[0]) if self.value else int]
        return KINDS[type(self.value)]

    @property
    def is_infinite(self) -> bool:
        """Whether it is no number that a schema can hold: there, None stands for it."""
        return isinstance(self.value, float) and not math.isfinite(self.value)

    @property
    def given(self) -> str:
        """The default in the schema: the user's, else the value of the examples; or nothing."""
        default = self.value if self.default is inspect.Parameter.empty else self.default
        is_own = type(default) is type(self.value) and default == self.value
        if not is_own and not (self.is_free and type(default) is type(self.value)):
            return ""
        if isinstance(default, list | tuple):
            return f"[{', '.join(map(repr, default))}]"
        if isinstance(default, str):
            return json.dumps(default) if default.isascii() and default.isprintable() else ""
        if isinstance(default, torch.dtype):
            return SCHEMA_DTYPES[default]
        if self.is_infinite:
            return "None"
        return "" if isinstance(default, float) and not math.isfinite(default) else repr(default)


@dataclass(frozen=True, slots=True)
class Plain:
    """The arguments of an op in order, inputs of the capture and plain ones.

    `conditions` are those under which the program does the same for other values; `unnamed` the
    plain values that are no arguments of the op.
    """

    row: tuple[CaptureInput | PlainArgument, ...]
    conditions: tuple[str, ...]
    unnamed: tuple[Any, ...]

    @property
    def arguments(self) -> list[PlainArgument]:
        """The plain ones."""
        return [one for one in self.row if isinstance(one, PlainArgument)]


def written(value: Any) -> str:
    """A plain value in C++."""
    if value is None:
        return "std::nullopt"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if isinstance(value, list | tuple):
        kind = "c10::List<bool>(" if bool in map(type, value) else ""
        return f"{kind}{{{', '.join(map(literal, value))}}}{')' if kind else ''}"
    return literal(value)


def check_of(op: str, one: PlainArgument) -> str:
    """The line that refuses another value of an argument that is fixed."""
    said = quoted(f"{op}: emitted for {one.own_name} = {one.value!r} alone, got ")
    if one.value is None:
        return f'TORCH_CHECK(!{one.name}.has_value(), {said}, "another");'
    if isinstance(one.value, list | tuple) and bool in map(type, one.value):
        return f'TORCH_CHECK({one.name} == {written(one.value)}, {said}, "another");'
    test = f"{one.name} == {written(one.value)}"
    if one.is_infinite:
        test = f"!{one.name}.has_value() || *{one.name} == {written(one.value)}"
        return f"TORCH_CHECK({test}, {said}, *{one.name});"
    if isinstance(one.value, list | tuple):
        test = f"{one.name}.equals({written(one.value)})"
    return f"TORCH_CHECK({test}, {said}, {one.name});"


def condition_of(op: str, condition: str) -> str:
    """The line that refuses values with which the program would take another way."""
    said = quoted(f"{op}: emitted for arguments with {condition}")
    return f"TORCH_CHECK({condition}, {said});"


def notes_of(plain: Plain) -> Iterator[str]:
    """What is said of plain arguments in the comment of a Function."""
    fixed = [f"{one.own_name} = {one.value!r}" for one in plain.arguments if not one.is_free]
    if fixed:
        yield f"Written for {', '.join(fixed)}: other values are refused."
    if plain.unnamed:
        yield f"Written for the values {', '.join(map(repr, plain.unnamed))} in its arguments."


def used_in(graph: fx.Graph, arguments: Sequence[PlainArgument]) -> list[PlainArgument]:
    """The arguments that a graph computes with."""
    names: set[str] = set()
    for node in graph.nodes:
        leaves = [*node.args, *node.kwargs.values()]
        names |= {name for leaf in leaves if isinstance(leaf, Named) for name in leaf.names}
    return [one for one in arguments if one.name in names]
