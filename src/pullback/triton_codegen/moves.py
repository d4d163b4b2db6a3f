"""Ops that read their argument at another index: slices, parts, what is put together or picked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from pullback.graph.cost import argument_of
from pullback.graph.values import aten, held_value, same
from pullback.triton_codegen.axes import SCATTERS, dim_of, refusal
from pullback.triton_codegen.expressions import (
    PRODUCT,
    KernelText,
    add,
    binary,
    both_hold,
    chosen,
    comparison_text,
    literal_text,
    mul,
    sub,
)

if TYPE_CHECKING:
    from pullback.triton_codegen.writer import KernelWriter, ReadAt

_at_least, _below, _equal = comparison_text(">="), comparison_text("<"), comparison_text("==")
_rest, _quotient = binary("%", PRODUCT), binary("//", PRODUCT)
_ZERO = literal_text(0.0)


def arange_text(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    """Numbers that count: the index itself, scaled and shifted."""
    start, step = argument_of(node, "start") or 0, argument_of(node, "step")
    found = writer.index(node, 0, at) or literal_text(0)
    if step not in (None, 1):
        found = mul(found, writer.value(step, at))
    return found if start == 0 else add(found, writer.value(start, at))


def _slice(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    source: Any = node.args[0]
    start, step = argument_of(node, "start") or 0, argument_of(node, "step") or 1
    return _shifted(writer, node, source, at, dim_of(node, source), start, step)


def _shifted(
    writer: KernelWriter, node: fx.Node, source: Any, at: ReadAt, dim: int, start: Any, step: Any
) -> KernelText:
    """A part of a tensor: read from `start` on."""
    index = writer.index(node, dim, at) or literal_text(0)
    start = _from_end(start, held_value(source).shape[dim])
    if step != 1:
        index = mul(index, writer.value(step, at))
    if not _is_zero(start):
        index = add(index, writer.value(start, at))
    return writer.value_at(source, dim, index, at, node)


def _is_zero(start: Any) -> bool:
    return isinstance(start, int) and start == 0


def _from_end(start: Any, size: Any) -> Any:
    number = held_value(start)
    if isinstance(number, int) and number < 0:
        return size + number
    return start if not isinstance(number, torch.SymInt) else number


def _select(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    source: Any = node.args[0]
    dim = dim_of(node, source)
    start = _from_end(node.args[2], held_value(source).shape[dim])
    return writer.value_at(source, dim, writer.value(start, at), at, node)


def part_text(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    """One of the parts of `split`, `chunk` or `unbind`."""
    whole: Any = node.args[0]
    place = int(node.args[1])  # type: ignore[arg-type]
    source = whole.args[0]
    dim = dim_of(whole, source)
    if whole.target is aten.unbind.int:
        return writer.value_at(source, dim, writer.value(place, at), at, node)
    start = 0
    for part in held_value(whole)[:place]:
        start = start + part.shape[dim]
    return _shifted(writer, node, source, at, dim, start, 1)


def _cat(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    """Each of the parts where it stands."""
    parts: Any = node.args[0]
    dim = dim_of(node, node)
    index = writer.index(node, dim, at)
    if index is None:
        return writer.value(parts[0], at)
    start: Any = 0
    found: list[tuple[KernelText, KernelText]] = []
    for place, part in enumerate(parts):
        end = start + held_value(part).shape[dim]
        below = _below(index, writer.value(end, at))
        above = _at_least(index, writer.value(start, at))
        is_first, is_last = place == 0, place == len(parts) - 1
        mask = below if is_first else above if is_last else both_hold(above, below)
        moved = index if is_first else sub(index, writer.value(start, at))
        found.append((mask, writer.value_at(part, dim, moved, at, node, mask)))
        start = end
    text = found[-1][1]
    for mask, value in reversed(found[:-1]):
        text = chosen(mask, value, text)
    return text


def _slice_backward(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    """Zeros, with a tensor from `start` on."""
    part, _, _, start, _, step = node.args
    dim = dim_of(node, node)
    start = _from_end(start, held_value(node).shape[dim])
    return _put(writer, node, at, part, dim, start, step)


def _slice_scatter(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    """A tensor, with another one from `start` on."""
    into, part = node.args[:2]
    dim = dim_of(node, node)
    start = _from_end(argument_of(node, "start") or 0, held_value(node).shape[dim])
    step = argument_of(node, "step") or 1
    return _put(writer, node, at, part, dim, start, step, writer.value(into, at))


def _padded(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    """Zeros around a tensor, along one dimension."""
    source, pads = node.args[0], list(node.args[1])  # type: ignore[arg-type]
    fill = node.args[2] if len(node.args) > 2 else 0
    rank = held_value(node).dim()
    dims = [(rank - 1 - i // 2, pads[i]) for i in range(0, len(pads), 2) if pads[i] or pads[i + 1]]
    if len(dims) != 1 or fill not in (0, 0.0):
        raise refusal(node)
    return _put(writer, node, at, source, *dims[0])


def _put(
    writer: KernelWriter,
    node: fx.Node,
    at: ReadAt,
    part: Any,
    dim: int,
    start: Any,
    step: Any = 1,
    rest: KernelText = _ZERO,
) -> KernelText:
    """A tensor from `start` on along a dimension, in every `step`-th place, and `rest` around."""
    index = writer.index(node, dim, at)
    if index is None:
        return writer.value(part, at)
    end = start + (held_value(part).shape[dim] - 1) * step + 1
    masks = [] if _is_zero(start) else [_at_least(index, writer.value(start, at))]
    if not same(end, held_value(node).shape[dim]):
        masks.append(_below(index, writer.value(end, at)))
    moved = index if _is_zero(start) else sub(index, writer.value(start, at))
    if step != 1:
        by = writer.value(step, at)
        masks.append(_equal(_rest(moved, by), literal_text(0)))
        moved = _quotient(moved, by)
    mask = functools.reduce(both_hold, masks) if masks else None
    text = writer.value_at(part, dim, moved, at, node, mask)
    return text if mask is None else chosen(mask, text, rest)


def _select_backward(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    """Zeros, with a tensor in one place."""
    return _put_one(writer, node, at, node.args[0], node.args[3], _ZERO)


def _select_scatter(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    """A tensor, with another one in one place."""
    into, part, _, place = node.args
    return _put_one(writer, node, at, part, place, writer.value(into, at))


def _put_one(
    writer: KernelWriter, node: fx.Node, at: ReadAt, part: Any, place: Any, rest: KernelText
) -> KernelText:
    dim = dim_of(node, node)
    index, text = writer.index(node, dim, at), writer.value(part, at)
    if index is None:
        return text
    where = writer.value(_from_end(place, held_value(node).shape[dim]), at)
    return chosen(_equal(index, where), text, rest)


def _flip(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    source: Any = node.args[0]
    dims: Any = node.args[1]
    value = held_value(source)
    for dim in dims:
        dim %= value.dim()
        index = writer.index(node, dim, at)
        if index is not None:
            moved = sub(writer.value(value.shape[dim] - 1, at), index)
            at = writer.moved_to(source, dim, moved, at, node)
    return writer.value(source, at)


def _gather(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    """One element of each row, at an index that is read or computed."""
    source: Any = node.args[0]
    dim = dim_of(node, source)
    there = writer.value(node.args[2], at)
    if not there.text.isidentifier():
        there = writer.bind(object(), writer.params.fresh("place"), there)
    size = writer.value(held_value(source).shape[dim], at)
    mask = both_hold(_at_least(there, literal_text(0)), _below(there, size))
    return writer.value_at(source, dim, there, at, node, mask)


def _scattered(writer: KernelWriter, node: fx.Node, at: ReadAt) -> KernelText:
    """A value where its place is the index of its row, else another."""
    into, _, index, source = node.args
    here = writer.index(node, dim_of(node, node), at)
    rest, put = writer.value(into, at), writer.value(source, at)
    if node.target is aten.scatter_add.default:
        put = put if rest.is_zero and rest.text == "0.0" else add(rest, put)
    return put if here is None else chosen(_equal(here, writer.value(index, at)), put, rest)


MOVES: dict[Any, Callable[[KernelWriter, fx.Node, ReadAt], KernelText]] = {
    **dict.fromkeys(SCATTERS, _scattered),
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.cat.default: _cat,
    aten.slice_backward.default: _slice_backward,
    aten.slice_scatter.default: _slice_scatter,
    aten.select_scatter.default: _select_scatter,
    aten.select_backward.default: _select_backward,
    aten.constant_pad_nd.default: _padded,
    aten.flip.default: _flip,
    aten.gather.default: _gather,
    aten.index_select.default: _gather,
}
