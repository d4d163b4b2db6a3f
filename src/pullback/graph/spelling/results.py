"""Ops with several results: parts of a tensor, and values with their indices."""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import fx

from pullback.function.slots import op_schema
from pullback.graph.cost import op_name, op_of
from pullback.graph.spelling.calls import FUNCTIONAL, last_as_minus_one
from pullback.graph.spelling.convolutions import as_one_number, gradient
from pullback.graph.spelling.expressions import Expression, PythonWriter, Spellings
from pullback.graph.spelling.views import element
from pullback.graph.values import aten, held_value, same, tensor_of


def _split(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.split(4, -1)`, with one size or with all of them."""
    source, sizes, *dims = node.args
    along = [last_as_minus_one(node, dim) for dim in dims]  # type: ignore[arg-type]
    if is_chunk(node):
        return writer.method(source, "chunk", len(node.meta["val"]), *along)
    return writer.method(source, "split", sizes, *along)


def is_chunk(node: fx.Node) -> bool:
    """Whether a symbolic size is that of so many equal parts."""
    size = held_value(node.args[1])
    value, dim = tensor_of(node.args[0]), node.args[2] if len(node.args) > 2 else 0
    if value is None or not isinstance(size, torch.SymInt):
        return False
    count, whole = len(node.meta["val"]), value.shape[dim]  # type: ignore[index]
    return same(size, (whole + count - 1) // count) or same(size * count, whole)


def pooled(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`torch.nn.functional.max_pool2d(x, 2, return_indices=True)`."""
    args: list[Any] = list(node.args)
    defaults: list[Any] = [[], [0], [1], False]
    source, size, stride, padding, dilation, ceil = [*args, *defaults[len(args) - 2 :]]
    kwargs: dict[str, Any] = {
        "stride": as_one_number(stride) if stride else None,
        "padding": as_one_number(padding) or None,
        "dilation": None if as_one_number(dilation) == 1 else as_one_number(dilation),
        "ceil_mode": ceil or None,
    }
    given = {key: arg for key, arg in kwargs.items() if arg is not None}
    if given.get("stride") == as_one_number(size):
        del given["stride"]
    if any(user.args[1] != 0 for user in node.users):
        given["return_indices"] = True
    return writer.call(f"{FUNCTIONAL}.max_pool2d", source, as_one_number(size), **given)


def one_of(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.max(-1).values`, `torch.nn.functional.max_pool2d(x, 2)`, or `results[0]`."""
    source: Any = node.args[0]
    index: Any = node.args[1]
    if (own := gradient(writer, node)) is not None:
        return own
    if not isinstance(source, fx.Node) or source not in writer.inlined:
        return element(writer, node)
    if source.target == aten.max_pool2d_with_indices.default and index == 0:
        return writer.inlined[source]
    op, kind = op_of(source), getattr(torch.return_types, op_name(source), None)
    field = op_schema(op).returns[index].name if op is not None and kind is not None else ""
    if not hasattr(kind, field or "-") or "torch.ops" in writer.inlined[source].head:
        return element(writer, node)
    return writer.attribute(source, f".{field}")


TABLE: Spellings = {
    **dict.fromkeys((aten.split.Tensor, aten.split_with_sizes.default), _split),
    aten.max_pool2d_with_indices.default: pooled,
    getitem: one_of,
}
