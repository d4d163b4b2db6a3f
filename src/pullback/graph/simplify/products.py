"""Matrix products: what PyTorch spells out for `matmul` and `linear` is one op again.

`matmul` and `linear` make the same call of the same kernel that stands in the graph, on the same
strides, so the numbers are the same.
"""

from __future__ import annotations

from typing import Any

from pullback.graph.rewrite import Table, rule
from pullback.graph.simplify.noise import RESHAPES
from pullback.graph.values import Value, aten, same, same_sizes

WHY = "`matmul` reshapes its factors just so and calls the same kernel"


@rule("batched-product", *RESHAPES, why=WHY)
def batched_product(node: Value) -> Any:
    """bmm(a.view(bh, n, k), b.view(bh, k, m)).view(b, h, n, m) -> a @ b"""
    inner = node.args[0]
    if inner.target != aten.bmm.default:
        return None
    left, right = (_unbatched(factor, node) for factor in inner.args)
    if left is None or right is None:
        return None
    return left.made(aten.matmul.default, right)


@rule("folded-product", *RESHAPES, why=WHY)
def folded_product(node: Value) -> Any:
    """mm(x.view(bt, k), w).view(b, t, m) -> x @ w"""
    inner = node.args[0]
    if inner.target != aten.mm.default:
        return None
    left, right = inner.args
    source = _unfolded(left, node)
    return None if source is None else source.made(aten.matmul.default, right)


@rule(
    "linear",
    aten.addmm.default,
    why="`linear` calls `addmm` on the bias, the input and the transposed weight",
)
def linear(node: Value) -> Any:
    """addmm(b, x, w.t()) -> linear(x, w, b)"""
    if node.kwargs:
        return None
    bias, source, matrix = node.args
    if matrix.target != aten.t.default or bias.dim() != 1:
        return None
    return source.made(aten.linear.default, matrix.args[0], bias)


@rule(
    "folded-linear",
    *RESHAPES,
    why="`linear` flattens an input of more dimensions just so",
)
def folded_linear(node: Value) -> Any:
    """linear(x.view(bt, k), w, b).view(b, t, m) -> linear(x, w, b)"""
    inner = node.args[0]
    if inner.target != aten.linear.default:
        return None
    flat, *rest = inner.args
    source = _unfolded(flat, node)
    return None if source is None else source.made(aten.linear.default, *rest)


def _unbatched(factor: Value, node: Value) -> Value | None:
    """The tensor with the dimensions of `node` that a factor of `bmm` was made from."""
    if factor.target == aten.transpose.int:
        inner, first, second = factor.args
        if {first % 3, second % 3} != {1, 2}:
            return None
        source = _unbatched(inner, node)
        return None if source is None else source.transpose(-2, -1)
    if factor.target not in RESHAPES:
        return None
    source = factor.args[0]
    if source.target == aten.expand.default:
        source = source.args[0]
    batch, matrix = source.val.shape[:-2], source.val.shape[-2:]
    if source.dim() != node.dim() or not same_sizes(matrix, factor.val.shape[-2:]):
        return None
    is_batch = all(same(x, y) or same(x, 1) for x, y in zip(batch, node.val.shape, strict=False))
    return source if is_batch else None


def _unfolded(factor: Value, node: Value) -> Value | None:
    """The contiguous tensor whose leading dimensions are flattened in `factor`."""
    if factor.target not in RESHAPES:
        return None
    source = factor.args[0]
    if source.dim() < 3 or not same_sizes(source.val.shape[:-1], node.val.shape[:-1]):
        return None
    is_folded = same(source.val.shape[-1], factor.val.shape[-1])
    return source if is_folded and source.val.is_contiguous() else None


TABLE: Table = (batched_product, folded_product, linear, folded_linear)
