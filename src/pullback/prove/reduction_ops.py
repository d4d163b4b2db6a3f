"""Formulas of reductions, and of ops made of them: one line per op, named as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pullback.prove import scalars as s
from pullback.prove.grids import Grid
from pullback.prove.pointwise_ops import HALF, POINTWISE
from pullback.prove.scalars import Outside, Scalar

Dims = Sequence[int] | int | None


def _sum(x: Grid, dim: Dims = None, keepdim: bool = False) -> Grid:
    return x.reduced(dim, keepdim, s.sum_of)


def _mean(x: Grid, dim: Dims = None, keepdim: bool = False) -> Grid:
    return x.reduced(dim, keepdim, lambda each: s.sum_of(each) / len(each))


def _largest(x: Grid, dim: Dims = None, keepdim: bool = False) -> Grid:
    return x.reduced(dim, keepdim, lambda each: _fold(each, s.larger))


def _smallest(x: Grid, dim: Dims = None, keepdim: bool = False) -> Grid:
    return x.reduced(dim, keepdim, lambda each: _fold(each, POINTWISE["minimum"]))


def _overall(name: str, reduce: Callable[[Grid], Grid]) -> Callable[..., Grid]:
    """`reduce` of all elements; along a dimension, `max` and `min` also return indices."""

    def apply(x: Grid, *rest: Any) -> Grid:
        if rest:
            raise Outside(f"`{name}` along a dimension")
        return reduce(x)

    return apply


def _fold(each: Sequence[Scalar], join: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
    kept = each[0]
    for scalar in each[1:]:
        kept = join(kept, scalar)
    return kept


def _var(
    x: Grid,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Grid:
    away = x - _mean(x, dim, True)
    fewer = 1 if correction is None else correction
    return (away * away).reduced(dim, keepdim, lambda each: s.sum_of(each) / (len(each) - fewer))


def _root(x: Grid) -> Grid:
    return x.map(lambda each: each**HALF)


def _var_mean(x: Grid, dim: Dims = None, *, keepdim: bool = False, **settings: Any) -> Any:
    return _var(x, dim, keepdim=keepdim, **settings), _mean(x, dim, keepdim)


def _norm(x: Grid, ord: float = 2, dim: Dims = None, keepdim: bool = False) -> Grid:
    if ord == 2:
        return _root(_sum(x * x, dim, keepdim))
    if ord == 1:
        return _sum(x.map(POINTWISE["abs"]), dim, keepdim)
    raise Outside(f"the norm of order {ord}")


def _softmax(x: Grid, dim: int, *_: Any) -> Grid:
    raised = x.map(s.exp)
    return raised / _sum(raised, dim, True)


def _log_softmax(x: Grid, dim: int, *_: Any) -> Grid:
    return x - _logsumexp(x, dim, True)


def _logsumexp(x: Grid, dim: Dims, keepdim: bool = False) -> Grid:
    return _sum(x.map(s.exp), dim, keepdim).map(s.log)


def _cumsum(x: Grid, dim: int) -> Grid:
    return x.running(dim, s.sum_of)


GRIDWISE: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    "amax": _largest,
    "amin": _smallest,
    "max": _overall("max", _largest),
    "min": _overall("min", _smallest),
    "var": _var,
    "var_mean": _var_mean,
    "linalg_vector_norm": _norm,
    "cumsum": _cumsum,
    "_softmax": _softmax,
    "_log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
}
