"""Order: the same sums, added up in another order. The last place of a result may differ."""

from __future__ import annotations

import math
from typing import Any

import torch

from pullback.graph.patterns import tensors
from pullback.graph.rewrite import RewriteRule, Table, rule
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
    divisor = count.val if isinstance(count, Value) else count
    sizes = [source.val.shape[dim] for dim in dims] if source.dim() else [1]
    if not isinstance(divisor, int | torch.SymInt) or not same(divisor, math.prod(sizes)):
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


# ---- numbers inside a product ----

MILD = 1024.0
"""How large, or as a fraction how small, the numbers may be that change places in a product."""


@rule(
    "folded-numbers",
    aten.mul.Tensor,
    why="a product of numbers and tensors, multiplied in another order: with numbers that are "
    "neither large nor small, only what is about to leave the range of its dtype can tell",
)
def folded_numbers(node: Value) -> Any:
    """2 * (0.5 * a * b) -> a * b, and (2 * a) * (3 * b) -> 6 * a * b"""
    left, right = node.args
    if not is_wide(node.node):
        return None
    if isinstance(right, int | float):
        return multiplied(left, right)
    found = without_number(right) if isinstance(right, Value) else None
    if found is None:
        return None
    bare, number = found
    scaled = multiplied(left, number)
    return None if scaled is None else scaled * bare


def multiplied(product: Any, number: float) -> Any:
    """`product` with its number times `number`, or None if it has no number to fold it into."""
    found = without_number(product)
    if found is None:
        return None
    bare, inner = found
    folded = inner * number
    if not all(1 / MILD <= abs(each) <= MILD for each in (inner, number, folded)):
        return None
    return bare if folded == 1 else with_number(product, folded)


def without_number(product: Any) -> tuple[Value, float] | None:
    """A product without the number in it, and the number; None if there is none."""
    return _taken(product, None)


def with_number(product: Value, number: float) -> Any:
    """A product with `number` in the place of the number in it."""
    taken = _taken(product, number)
    return None if taken is None else taken[0]


def _taken(product: Any, new: float | None) -> tuple[Value, float] | None:
    """`product` with its number replaced by `new`, or left out; and the number."""
    if not isinstance(product, Value) or not product.is_used_once or product.kwargs:
        return None
    if product.target not in (aten.mul.Tensor, aten.div.Tensor):
        return None
    left, right = product.args
    if product.target == aten.mul.Tensor and isinstance(right, int | float):
        return (left if new is None else left * new), right
    if (taken := _taken(left, new)) is not None:
        return taken[0].made(product.target, right), taken[1]
    if product.target == aten.mul.Tensor and (taken := _taken(right, new)) is not None:
        return left.made(product.target, taken[0]), taken[1]
    return None


TABLE: Table = (
    transposed_product,
    average,
    folded_numbers,
    product_plus,
    RewriteRule.of(
        "repeated-summand",
        (a + b) + b,
        lambda a, b: a + 2 * b,
        when=is_real,
        why="a + b + b rounds twice, a + 2b once",
    ),
    RewriteRule.of(
        "repeated-subtrahend",
        (a - b) - b,
        lambda a, b: a - 2 * b,
        when=is_real,
        why="a - b - b rounds twice, a - 2b once",
    ),
)
