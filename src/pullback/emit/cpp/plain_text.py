"""Plain arguments in C++: what is said of them, and how other values are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from pullback.emit.cpp.plain import Plain, PlainArgument
from pullback.emit.cpp.values import DTYPES, Named, literal, quoted


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
