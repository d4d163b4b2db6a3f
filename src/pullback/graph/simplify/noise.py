"""Noise: aliases, copies and chains of views that change nothing. Exact: no number is computed."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pullback.graph.cost import op_of
from pullback.graph.rewrite import Table, rule
from pullback.graph.simplify.composites import is_wide
from pullback.graph.values import (
    Value,
    aten,
    outcome_of,
    same,
    same_kind,
    same_layout,
    tensor_of,
)

RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
ONES = (aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims)
VIEWS = (
    *RESHAPES,
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.expand.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.slice.Tensor,
    aten.view_as_real.default,
    aten.view_as_complex.default,
)


@rule(
    "alias",
    *(aten.alias.default, aten.detach.default, aten.lift_fresh.default),
    why="an alias holds the very same memory; history is not a matter of a captured graph",
)
def alias(node: Value) -> Any:
    """alias(x) -> x"""
    return node.args[0]


@rule(
    "copy",
    *(aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default),
    why="a copy of one dtype, device and layout holds the same numbers, and nothing changes them",
)
def copy(node: Value) -> Any:
    """clone(x) -> x"""
    source = node.args[0]
    if _marks(source.val) == _marks(node.val):
        return source
    # The copy of a conjugate is no view any more: ops that compute see no difference.
    users = map(op_of, node.node.users)
    is_computed = all(op is not None and torch.Tag.pointwise in op.tags for op in users)
    return source if is_computed else None


@rule(
    "copied-over",
    aten.copy.default,
    why="what is written over is not read: the numbers are those of the source",
    keeps_strides=False,
)
def copied_over(node: Value) -> Any:
    """copy(x, y) -> y, where y has the shape and dtype of x"""
    source = node.args[1]
    return source if _marks(source.val) == _marks(node.val) else None


@rule(
    "widened-and-back",
    aten._to_copy.default,
    why="a wider floating-point type holds every number of the narrower one",
)
def widened_and_back(node: Value) -> Any:
    """x.double().float() -> x, where x is float"""
    middle = node.args[0]
    if middle.target != aten._to_copy.default:
        return None
    source = middle.args[0]
    is_wider = torch.promote_types(middle.dtype, source.dtype) == middle.dtype
    return source if is_wider and source.dtype.is_floating_point else None


@rule(
    "round-trip",
    *VIEWS,
    why="a view with the sizes, strides and offset of the tensor it came from is that tensor",
)
def round_trip(node: Value) -> Any:
    """t(t(x)) -> x, and every other chain of views that comes back"""
    found, source = None, node.node
    while source.target in VIEWS and not _copies(source):
        source = source.args[0]  # type: ignore[assignment]
        if _same_place(node.node, source):
            found = source
    return None if found is None else node.maker.wrap(found)


@rule(
    "view-of-view",
    *RESHAPES,
    why="only the last shape counts; the numbers keep their order",
)
def view_of_view(node: Value) -> Any:
    """x.view(a).view(b) -> x.view(b)"""
    inner, shape = node.args
    if inner.target not in (*RESHAPES, *ONES) or not inner.is_used_once:
        return None
    return inner.args[0].made(node.target, shape)


@rule(
    "copied-view",
    *(aten._unsafe_view.default, aten.view.default),
    why="`reshape` copies where strides ask for it: the same copy, the same view",
)
def copied_view(node: Value) -> Any:
    """x.clone().view(a) -> x.reshape(a)"""
    inner, shape = node.args
    if inner.target != aten.clone.default or not inner.is_used_once:
        return None
    return inner.args[0].made(aten.reshape.default, shape)


@rule(
    "swapped",
    aten.permute.default,
    why="a permutation that exchanges two dimensions is their transpose: the same view",
)
def exchanged_dims(node: Value) -> Any:
    """x.permute(1, 0) -> x.t()"""
    source, order = node.args
    dims = [dim % source.dim() for dim in order]
    moved = [place for place, dim in enumerate(dims) if place != dim]
    if len(moved) != 2:
        return None
    if source.dim() == 2:
        return source.t()
    last = source.dim() - 1
    return source.transpose(*((-2, -1) if moved == [last - 1, last] else moved))


@rule(
    "permuted-twice",
    aten.permute.default,
    why="two permutations, one after the other, are one: the same view",
)
def permuted_twice(node: Value) -> Any:
    """x.permute(a).permute(b) -> x.permute(a[b])"""
    inner, order = node.args
    if inner.target != aten.permute.default or not inner.is_used_once:
        return None
    source, first = inner.args
    return source.made(aten.permute.default, [first[dim] for dim in order])


@rule(
    "cast-count",
    aten.div.Tensor,
    aten.mul.Tensor,
    why="an integer meets a floating-point number as one, cast before or by the op itself",
)
def cast_count(node: Value) -> Any:
    """x / count.to(x.dtype) -> x / count, where the count is an integer"""
    source, cast = node.args
    if (
        not isinstance(cast, Value)
        or cast.target != aten._to_copy.default
        or not is_wide(node.node)
    ):
        return None
    count = cast.args[0]
    if count.dtype.is_floating_point or count.dtype.is_complex or cast.dtype != source.dtype:
        return None
    return source.made(node.target, count)


@rule(
    "whole-slice",
    aten.slice_backward.default,
    why="a slice as large as the tensor it is put into fills it",
)
def whole_slice(node: Value) -> Any:
    """slice_backward(x, x.shape, ...) -> x"""
    return node.args[0]


@rule(
    "zeros-like",
    aten.new_zeros.default,
    why="zeros are zeros; shape, dtype and device are compared",
)
def zeros_like(node: Value) -> Any:
    """x.new_zeros(x.shape) -> zeros_like(x)"""
    return node.args[0].made(aten.zeros_like.default)


def _copies(node: fx.Node) -> bool:
    """Whether it is a `reshape` that no view can do: the copy lies elsewhere, in another order."""
    if node.target != aten.reshape.default:
        return False
    try:
        outcome_of(aten.view.default, node.args, {})
    except (RuntimeError, ValueError):
        return True
    return False


def _same_place(a: fx.Node, b: fx.Node) -> bool:
    """Whether two views of one tensor are the same, whatever the strides it has next time."""
    one, two = tensor_of(a), tensor_of(b)
    if one is None or two is None or not same_kind(one, two):
        return False
    # A stride of zero, as after `expand`, makes different views look the same.
    spread = all(same(size, 1) or not same(step, 0) for size, step in _steps(two))
    offset = same(one.storage_offset(), two.storage_offset())
    return spread and offset and _marks(one) == _marks(two) and same_layout(one, two)


def _marks(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Whether numbers are to be conjugated or negated when they are read."""
    return tensor.is_conj(), tensor.is_neg()


def _steps(tensor: torch.Tensor) -> list[tuple[Any, Any]]:
    return list(zip(tensor.shape, tensor.stride(), strict=True))


TABLE: Table = (
    alias,
    copy,
    copied_over,
    widened_and_back,
    round_trip,
    view_of_view,
    copied_view,
    exchanged_dims,
    permuted_twice,
    cast_count,
    whole_slice,
    zeros_like,
)
