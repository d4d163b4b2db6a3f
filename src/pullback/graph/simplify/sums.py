"""Sums: a value added to itself, and reductions that keep a dimension just to drop it.

A sum over two dimensions in turn is left alone: in one go it would round in another order.
"""

from __future__ import annotations

from typing import Any

from pullback.graph.patterns import tensors
from pullback.graph.rewrite import RewriteRule, Table, rule
from pullback.graph.simplify.numbers import is_real
from pullback.graph.values import Value, aten

(a,) = tensors("a")

REDUCTIONS = (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default)
WHY = "the reduction is the same; only a dimension of size one is kept or not"


@rule(
    "kept-then-dropped",
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default),
    *(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default),
    why=WHY,
)
def kept_then_dropped(node: Value) -> Any:
    """x.sum(0, keepdim=True).view(n) -> x.sum(0)"""
    inner = node.args[0]
    if not _is_reduction(inner, keepdim=True):
        return None
    source, dims = inner.args[:2]
    return node.maker.call(inner.target, source, dims, **inner.kwargs)


@rule("dropped-then-kept", aten.unsqueeze.default, aten.view.default, why=WHY)
def dropped_then_kept(node: Value) -> Any:
    """x.sum(0).unsqueeze(0) -> x.sum(0, keepdim=True)"""
    inner = node.args[0]
    if not _is_reduction(inner, keepdim=False):
        return None
    source, dims = inner.args[:2]
    return node.maker.call(inner.target, source, dims, True, **inner.kwargs)


def _is_reduction(node: Value, *, keepdim: bool) -> bool:
    if node.target not in REDUCTIONS or not node.is_used_once or len(node.args) < 2:
        return False
    _, dims, *keeps = node.args
    return bool(dims) and (bool(keeps) and bool(keeps[0])) == keepdim


TABLE: Table = (
    RewriteRule.of(
        "doubled",
        a + a,
        lambda a: 2 * a,
        when=is_real,
        why="x + x and 2 * x are the same number, rounded once, also where it overflows",
    ),
    kept_then_dropped,
    dropped_then_kept,
)
