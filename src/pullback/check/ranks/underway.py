"""Memory that an asynchronous collective still writes or sends, and what comes there too early.

Until somebody waits for its handle, nobody may read what a collective writes, nor write what it
sends. That it went well says nothing: on another network it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.function.slots import op_schema
from pullback.judge.example import tensors_in

# Operators that ask a tensor for its shape, and for none of its numbers.
_OF_SHAPE = ("_like", "new_empty", "new_zeros", "new_ones", "new_full", "empty_strided")

Span = tuple[int, int]  # addresses, from the first to the one after the last


@dataclass(frozen=True, slots=True)
class Underway:
    """What a collective writes, and what it sends, until it is waited for."""

    written: tuple[Span, ...]
    sent: tuple[Span, ...]


def underway(written: Iterable[Tensor], sent: Iterable[Tensor]) -> Underway:
    """The memory of a collective that has begun."""
    return Underway(tuple(map(_span, written)), tuple(map(_span, sent)))


def too_early(func: Any, args: Sequence[Any], kwargs: Any, collective: Underway) -> str:
    """What an operator does with the memory of a collective: "reads" or "writes"; or nothing."""
    schema = op_schema(func)
    name = func.name().partition("::")[2].partition(".")[0]
    if name.endswith(_OF_SHAPE):
        return ""
    is_view = any(one.alias_info and not one.alias_info.is_write for one in schema.returns)
    for argument, value in zip(schema.arguments, _in_order(schema, args, kwargs), strict=False):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in () if is_view and not is_written else tensors_in(value):
            if any(_touches(tensor, span) for span in collective.written):
                return "writes" if is_written else "reads"
            if is_written and any(_touches(tensor, span) for span in collective.sent):
                return "writes"
    return ""


def _in_order(schema: Any, args: Sequence[Any], kwargs: Any) -> list[Any]:
    """The arguments as the schema lists them."""
    rest = [(kwargs or {}).get(argument.name) for argument in schema.arguments[len(args) :]]
    return [*args, *rest]


def _span(tensor: Tensor) -> Span:
    if type(tensor) is not Tensor and not isinstance(tensor, torch.nn.Parameter):
        return (0, 0)  # a wrapper, that has no memory of its own
    start = tensor.data_ptr()
    if not tensor.numel():
        return (start, start)
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (start, start + (last + 1) * tensor.element_size())


def _touches(tensor: Tensor, span: Span) -> bool:
    """Whether an element of a tensor lies in memory between two addresses."""
    low, high = _span(tensor)
    if high <= span[0] or span[1] <= low:
        return False
    if high - low == tensor.numel() * tensor.element_size():
        return True
    places = torch.zeros(1, dtype=torch.int64)
    for n, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = (places[:, None] + step * torch.arange(n)).flatten().unique()
    places = low + places * tensor.element_size()
    return bool(((places >= span[0]) & (places < span[1])).any())
