"""Ops of PyTorch that no kernel has, as formulas of ops that one has.

A formula takes the arguments of its op. `primitives.fused` runs it in float32, and rounds once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from pullback.graph.cost import hint_of
from pullback.graph.rewrite import Table, rule
from pullback.graph.values import Value, aten, named_value

INFINITY = float("inf")


def computed_size(op: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """A size made of two others: a number, or a value where one is symbolic."""
    known = next((one for one in (a, b) if isinstance(one, Value)), None)
    return op(a, b) if known is None else known.maker.call(op, a, b)


# ---- activations ----


def mish(x: Any) -> Any:
    """x tanh(softplus(x))."""
    return x * x.made(aten.softplus.default).tanh()


def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """x where it is positive, else exp(x) - 1, scaled."""
    below = (x * input_scale).made(aten.expm1.default) * (alpha * scale)
    return (x * scale).where(x > 0, below)


def elu_backward(
    g: Any, alpha: float, scale: float, input_scale: float, is_result: bool, x: Any
) -> Any:
    """From the input x, or from the result."""
    slope = x + alpha * scale if is_result else (x * input_scale).exp() * (alpha * scale)
    return (g * scale).where(x > 0, g * slope * input_scale)


def celu(x: Any, alpha: float = 1.0) -> Any:
    """x where it is positive, else alpha (exp(x / alpha) - 1)."""
    return elu(x, alpha, 1.0, 1.0 / alpha)


def hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    """x between two bounds."""
    return x.clamp(low, high)


def hardtanh_backward(g: Any, x: Any, low: float, high: float) -> Any:
    """g where x is strictly between the bounds."""
    return g.masked_fill(x <= low, 0).masked_fill(x >= high, 0)


def hardsigmoid(x: Any) -> Any:
    """x / 6 + 1 / 2 between 0 and 1."""
    return (x + 3.0).clamp(0.0, 6.0) / 6.0


def hardsigmoid_backward(g: Any, x: Any) -> Any:
    """A sixth of g where x is strictly between -3 and 3."""
    return (g / 6.0).masked_fill(x <= -3.0, 0).masked_fill(x >= 3.0, 0)


def hardswish(x: Any) -> Any:
    """x hardsigmoid(x)."""
    return x * (x + 3.0).clamp(0.0, 6.0) / 6.0


def hardswish_backward(g: Any, x: Any) -> Any:
    """0 below -3, g above 3, a line between them."""
    return g.where(x > 3.0, g * (x / 3.0 + 0.5)).masked_fill(x < -3.0, 0)


def log_sigmoid(x: Any) -> Any:
    """log(sigmoid(x)); what else the op returns is of use to its own backward alone."""
    rest = (-x.made(aten.abs.default)).exp().made(aten.log1p.default)
    return x.clamp(max=0.0) - rest, None


def prelu(x: Any, weight: Any) -> Any:
    """x where it is positive, else a multiple of it."""
    return x.where(x > 0, weight * x)


def prelu_backward(g: Any, x: Any, weight: Any) -> Any:
    """The gradients of x and of the weight."""
    return g.where(x > 0, weight * g), (x * g).masked_fill(x > 0, 0)


def _halves(x: Any, dim: int) -> list[Any]:
    half = computed_size(operator.floordiv, x.shape[dim], 2)
    ends = ((0, half), (half, computed_size(operator.mul, half, 2)))
    return [x.made(aten.slice.Tensor, dim, start, end) for start, end in ends]


def glu(x: Any, dim: int = -1) -> Any:
    """One half times the sigmoid of the other."""
    a, b = _halves(x, dim)
    return a * b.sigmoid()


def glu_backward(g: Any, x: Any, dim: int) -> Any:
    """The gradients of both halves, side by side."""
    a, b = _halves(x, dim)
    s = named_value("s", b.sigmoid())
    return x.maker.call(aten.cat.default, [g * s, g * a * s * (1 - s)], dim)


def logaddexp(a: Any, b: Any) -> Any:
    """log(exp(a) + exp(b)), shifted by the larger of both."""
    largest = named_value("largest", a.made(aten.maximum.default, b))
    rest = (-(a - b).made(aten.abs.default)).exp().made(aten.log1p.default)
    is_infinite = largest.made(aten.abs.default).eq(INFINITY)
    return largest.where(is_infinite, largest + rest)


def nan_to_num(x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    """x, with a number for NaN and for each infinity."""
    facts = torch.finfo(x.dtype)
    for value, other in ((INFINITY, posinf or facts.max), (-INFINITY, neginf or facts.min)):
        x = x.masked_fill(x.eq(value), float(other))
    return x.masked_fill(x.made(aten.isnan.default), float(nan or 0.0))


# ---- along a dimension ----


def vector_norm(x: Any, p: Any, dims: Any, keepdim: bool = False) -> Any:
    """The root of the sum of squares; no other norm."""
    if p not in (None, 2):
        return None
    return x.made(aten.linalg_vector_norm.default, 2, dims or None, keepdim)


def largest_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The largest, and the first place where it is."""
    return _extreme(aten.amax.default, x, dim, keepdim)


def smallest_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The smallest, and the first place where it is."""
    return _extreme(aten.amin.default, x, dim, keepdim)


def _extreme(reduction: Any, x: Any, dim: int, keepdim: bool) -> Any:
    if not x.dim():
        return None
    found = x.made(reduction, [dim], True)
    places, size = _places(x, dim), x.shape[dim]
    is_there = x.made(aten.eq.Tensor, found)
    first = is_there.maker.call(aten.where.ScalarOther, is_there, places, size)
    first = named_value("first", first.made(aten.amin.default, [dim], True))
    return (found, first) if keepdim else (found.squeeze(dim), first.squeeze(dim))


def _places(x: Any, dim: int) -> Any:
    """Where along a dimension each element is."""
    across = [1] * x.dim()
    across[dim % x.dim()] = -1
    size, device = x.shape[dim], x.val.device
    return x.maker.call(aten.arange.default, size, dtype=torch.int64, device=device).reshape(across)


def selected_backward(g: Any, dim: int, index: Any, sizes: Any, keepdim: bool) -> Any:
    """The gradient of what was the largest, at its place."""
    if not keepdim:
        g, index = g.unsqueeze(dim), index.unsqueeze(dim)
    return g.new_zeros(sizes).scatter(dim, index, g)


# ---- places ----


@rule("stack", aten.stack.default, why="parts of size one, side by side")
def stack(node: Value) -> Any:
    """stack(a, b) -> cat(a.unsqueeze(dim), b.unsqueeze(dim))"""
    parts = node.args[0]
    dim = int(node.args[1]) if len(node.args) > 1 else 0
    dim %= node.dim()
    return node.maker.call(aten.cat.default, [part.unsqueeze(dim) for part in parts], dim)


@rule("roll", aten.roll.default, why="the end, and what is before it")
def roll(node: Value) -> Any:
    """roll(x, n, dim) -> cat(x[-n:], x[:-n])"""
    x, shifts = node.args[:2]
    dims = node.args[2] if len(node.args) > 2 else []
    if len(dims) != 1:
        return None
    shift, dim = shifts[0], dims[0]
    size = x.shape[dim]
    is_forward = hint_of(shift.val if isinstance(shift, Value) else shift) >= 0
    place = computed_size(operator.sub, size if is_forward else 0, shift)
    pairs = ((place, size), (0, place))
    parts = [x.made(aten.slice.Tensor, dim, start, end) for start, end in pairs]
    return node.maker.call(aten.cat.default, parts, dim)


@rule("triangle", aten.tril.default, aten.triu.default, why="a mask of rows and columns")
def triangle(node: Value) -> Any:
    """tril(x) -> x where column - row <= diagonal, else 0"""
    x, shift = node.args[0], node.args[1] if len(node.args) > 1 else 0
    offset = _places(x, -1).made(aten.sub.Tensor, _places(x, -2))
    kept = offset <= shift if node.target is aten.tril.default else offset >= shift
    if x.dtype is not torch.bool:
        return x.masked_fill(kept.made(aten.logical_not.default), 0)
    is_all = x.target is aten.ones.default or (x.target is aten.full.default and bool(x.args[1]))
    kept = kept.expand(x.shape)
    return kept if is_all else x.made(aten.bitwise_and.Tensor, kept)


@rule("row-picks", aten.index.Tensor, why="x[arange(n), index] is one element of each row")
def row_picks(node: Value) -> Any:
    """x[arange(n), index] -> x.gather(1, index)"""
    x, indices = node.args[0], node.args[1]
    index = _index_of_rows(x, indices)
    return None if index is None else x.gather(1, index).squeeze(1)


@rule("row-puts", aten.index_put.default, why="one element of each row is added to")
def row_puts(node: Value) -> Any:
    """x.index_put([arange(n), index], y, accumulate=True) -> x.scatter_add(1, index, y)"""
    x, indices, source, *rest = node.args
    index = _index_of_rows(x, indices) if rest and rest[0] else None
    if index is None or source.dim() != 1:
        return None
    return x.scatter_add(1, index, source.unsqueeze(1))


def _index_of_rows(x: Any, indices: Any) -> Any:
    """The index of each row as a column, where rows are counted from the first to the last."""
    if x.dim() != 2 or len(indices) != 2 or not all(isinstance(i, Value) for i in indices):
        return None
    rows, index = indices
    is_counted = rows.target is aten.arange.default and rows.val.dtype is torch.int64
    if not is_counted or index.dim() != 1 or index.dtype is torch.bool:
        return None
    wrapped = index.made(aten.add.Tensor, x.shape[1])  # a negative one counts from the end
    return index.where(index >= 0, wrapped).unsqueeze(1)


FORMULAS: dict[Any, Callable[..., Any]] = {
    aten.mish.default: mish,
    aten.elu.default: elu,
    aten.elu_backward.default: elu_backward,
    aten.celu.default: celu,
    aten.hardtanh.default: hardtanh,
    aten.hardtanh_backward.default: hardtanh_backward,
    aten.hardsigmoid.default: hardsigmoid,
    aten.hardsigmoid_backward.default: hardsigmoid_backward,
    aten.hardswish.default: hardswish,
    aten.hardswish_backward.default: hardswish_backward,
    aten.log_sigmoid_forward.default: log_sigmoid,
    aten._prelu_kernel.default: prelu,
    aten._prelu_kernel_backward.default: prelu_backward,
    aten.glu.default: glu,
    aten.glu_backward.default: glu_backward,
    aten.logaddexp.default: logaddexp,
    aten.nan_to_num.default: nan_to_num,
    aten.norm.ScalarOpt_dim: vector_norm,
    aten.max.dim: largest_along,
    aten.min.dim: smallest_along,
    aten.value_selecting_reduction_backward.default: selected_backward,
}
"""Formulas in float32, by their op."""

PLACES: Table = (stack, roll, triangle, row_picks, row_puts)
"""Rules for what moves numbers."""
