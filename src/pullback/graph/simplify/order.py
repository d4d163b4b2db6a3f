"""Order: the same sums, added up in another order. The last place of a result may differ."""

from __future__ import annotations

import math
from typing import Any

import torch

from pullback.graph.patterns import tensors
from pullback.graph.rewrite import Rule, Table, rule
from pullback.graph.simplify.composites import is_wide
from pullback.graph.simplify.numbers import is_real
from pullback.graph.values import Value, aten, same

a, b = tensors("a b")

PRODUCTS = (aten.mm.default, aten.bmm.default, aten.matmul.default)


@rule(
    "transposed-product",
    aten.t.default,
    aten.transpose.int,
    why="(a b)ᵀ = bᵀ aᵀ: the same terms, but the kernel may add them up in other blocks",
    keeps_strides=False,
)
def transposed_product(node: Value) -> Any:
    """(a.t() @ b).t() -> b.t() @ a, where a factor is transposed already"""
    product = node.args[0]
    if product.target not in PRODUCTS or not product.is_used_once:
        return None
    left, right = product.args
    if not _swaps_matrix(node) or not (_swaps_matrix(left) or _swaps_matrix(right)):
        return None
    return product.maker.call(product.target, _transposed(right), _transposed(left))


def _swaps_matrix(value: Value) -> bool:
    """Whether a node transposes the last two dimensions."""
    if value.target == aten.t.default:
        return value.dim() == 2
    if value.target != aten.transpose.int:
        return False
    first, second = value.args[1:]
    return {first % value.dim(), second % value.dim()} == {value.dim() - 2, value.dim() - 1}


def _transposed(value: Value) -> Value:
    if _swaps_matrix(value):
        source: Value = value.args[0]
        return source
    return value.t() if value.dim() == 2 else value.transpose(-2, -1)


@rule(
    "average",
    aten.div.Tensor,
    why="a sum over n elements divided by n is their mean, which may multiply by 1/n",
)
def average(node: Value) -> Any:
    """x.sum(d) / n -> x.mean(d)"""
    total, count = node.args
    if not isinstance(total, Value) or not total.is_used_once or not is_wide(node.node):
        return None
    if total.target != aten.sum.dim_IntList or total.kwargs:
        return None
    source, dims, *keepdim = total.args
    number = count.val if isinstance(count, Value) else count
    sizes = [source.val.shape[dim] for dim in dims]
    if not isinstance(number, int | torch.SymInt) or not same(number, math.prod(sizes)):
        return None
    return source.made(aten.mean.dim, dims, *keepdim)


@rule(
    "product-plus",
    aten.addmm.default,
    why="a sum of three: the kernel may begin with the summand instead of ending with it",
    is_late=True,
)
def product_plus(node: Value) -> Any:
    """addmm(b, x, y) -> x @ y + b"""
    if node.kwargs:
        return None
    summand, left, right = node.args
    return left @ right + summand


TABLE: Table = (
    transposed_product,
    average,
    product_plus,
    Rule.of(
        "repeated-summand",
        (a + b) + b,
        lambda a, b: a + 2 * b,
        when=is_real,
        why="a + b + b rounds twice, a + 2b once",
    ),
)
