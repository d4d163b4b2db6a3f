"""Zeros: identities that hold for every number, but for the sign of a result that is zero.

A sum that cancels is +0 whichever way its terms are signed, so `-(a - b)` is -0 where `b - a` is
+0. A gradient does not mind.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import fx

from pullback.graph.parts import phase_of
from pullback.graph.patterns import any_number, call, tensors
from pullback.graph.rewrite import RewriteRule, Table, rule
from pullback.graph.simplify.numbers import is_real
from pullback.graph.values import Value, aten, held_value, same, tensor_of

a, b = tensors("a b")
c = any_number("c")

CANCELS = "the same terms with the other sign: only the sign of a zero sum differs"


@rule("negated-sum", aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, why=CANCELS)
def negated_sum(node: Value) -> Any:
    """(-x).sum(d) -> -(x.sum(d))"""
    inner, *rest = node.args
    if inner.target != aten.neg.default or not inner.is_used_once:
        return None
    return -inner.args[0].made(node.target, *rest, **node.kwargs)


@rule("opposite-difference", aten.sub.Tensor, why=CANCELS)
def opposite_difference(node: Value) -> Any:
    """b - a -> -(a - b), where a - b is there already, for this phase"""
    a, b = node.args[0], node.args[1]
    if node.kwargs or not isinstance(b, Value):
        return None
    for other in b.node.users:
        is_opposite = other.target == aten.sub.Tensor and other.args == (b.node, a.node)
        if is_opposite and not other.kwargs and other < node.node and _serves(other, node.node):
            return -node.maker.wrap(other)
    return None


def _serves(earlier: fx.Node, node: fx.Node) -> bool:
    """Whether `earlier` is needed in the phase of `node` anyway."""
    calls = [user for user in earlier.users if user.op == "call_function"]
    return phase_of(node) in {phase_of(user) for user in (earlier, *calls)}


@rule("negated-product", aten.mm.default, aten.bmm.default, aten.matmul.default, why=CANCELS)
def negated_product(node: Value) -> Any:
    """(-a) @ b -> -(a @ b)"""
    args = node.args
    bare = [
        arg.args[0] if arg.target == aten.neg.default and arg.is_used_once else arg for arg in args
    ]
    changed = sum(one is not other for one, other in zip(args, bare, strict=True))
    if not changed:
        return None
    product = node.maker.call(node.target, *bare)
    return -product if changed == 1 else product


@rule(
    "sum-of-one",
    aten.sum.dim_IntList,
    why="a sum of one term is the term; it starts at +0, so -0 becomes +0",
)
def sum_of_one(node: Value) -> Any:
    """x.sum(0) -> x.squeeze(0), where x has size one there"""
    source, dims, *keepdim = node.args
    if not source.dim():
        return source  # PyTorch lets a number be summed over a dimension that it does not have
    if not dims or not all(same(source.val.shape[dim], 1) for dim in dims):
        return None
    return source if any(keepdim) else source.made(aten.squeeze.dims, dims)


# ---- slices and selections put together again ----

PUT = "each place gets its own numbers, plus zeros: only the sign of a zero differs"


@rule("slices-joined", aten.add.Tensor, why=PUT)
def slices_joined(node: Value) -> Any:
    """pad(a) + pad(b) -> cat([a, b])"""
    terms = _terms_of(node.node, aten.slice_backward.default)
    geometry = {(term.args[2], term.args[5]) for term in terms}
    if len(geometry) != 1:
        return None
    dim, step = geometry.pop()
    slots = terms_by_place(terms, 3)
    order = tiled(slots, node.val.shape[dim], dim)
    if step != 1 or order is None:
        return None
    return node.maker.call(aten.cat.default, [_added(node, slots[slot]) for slot in order], dim)


@rule("selections-stacked", aten.add.Tensor, why=PUT)
def selections_stacked(node: Value) -> Any:
    """put(a, 0) + put(b, 1) -> stack([a, b])"""
    terms = _terms_of(node.node, aten.select_backward.default)
    dims = {term.args[2] for term in terms}
    if len(dims) != 1:
        return None
    dim = dims.pop()
    size, slots = node.val.shape[dim], terms_by_place(terms, 3, count=1)
    if not isinstance(size, int) or set(slots) != {(i,) for i in range(size)}:
        return None
    parts = [_added(node, slots[slot]) for slot in sorted(slots)]
    return node.maker.call(aten.stack.default, parts, dim)


def _terms_of(node: fx.Node, target: Any) -> list[Any]:
    """The terms of a sum if each of them calls `target`, else nothing.

    Nothing either if the sum is part of a larger one of that kind, which takes all terms at once.
    """
    terms, (*users,) = list(_terms(node)), node.users
    is_part = len(users) == 1 and _all_call(_terms(users[0]), target)
    return terms if _all_call(terms, target) and not is_part else []


def _all_call(terms: Any, target: Any) -> bool:
    return all(isinstance(term, fx.Node) and term.target == target for term in terms)


def _terms(node: fx.Node) -> Any:
    """The terms of a sum, from left to right, through sums that nothing else uses."""
    if node.target != aten.add.Tensor or node.kwargs:
        yield None
        return
    for arg in node.args:
        if isinstance(arg, fx.Node) and arg.target == aten.add.Tensor and len(arg.users) == 1:
            yield from _terms(arg)
        else:
            yield arg


def terms_by_place(terms: list[fx.Node], first: int, count: int = 2) -> dict[Any, list[fx.Node]]:
    """What is put at each place: the terms by their arguments from `first` on."""
    slots: dict[Any, list[fx.Node]] = {}
    for term in terms:
        slots.setdefault(tuple(term.args[first : first + count]), []).append(term)
    return slots


def tiled(slots: dict[Any, list[fx.Node]], size: Any, dim: int) -> list[Any] | None:
    """Slices in the order in which they cover a dimension without gap or overlap, or None."""
    order: list[Any] = []
    reached: Any = 0
    while len(order) < len(slots):
        following = [slot for slot in slots if same(held_value(slot[0]), reached)]
        if len(following) != 1 or following[0] in order:
            return None
        order += following
        end = held_value(following[0][1])
        reached = size if same(end, sys.maxsize) else end
    parts = [tensor_of(_part(slots[slot][0])) for slot in order]
    covered = sum(part.shape[dim] for part in parts if part is not None)
    return order if same(covered, size) and len(parts) == len(order) else None


def _part(node: fx.Node) -> Any:
    """What a slice takes or gives: itself, or the gradient that is put in."""
    return node if node.target == aten.slice.Tensor else node.args[0]


def _added(node: Value, terms: list[fx.Node]) -> Value:
    total: Value = node.maker.wrap(terms[0].args[0])
    for term in terms[1:]:
        total = total + node.maker.wrap(term.args[0])
    return total


TABLE: Table = (
    negated_sum,
    opposite_difference,
    negated_product,
    sum_of_one,
    slices_joined,
    selections_stacked,
    RewriteRule.of(
        "plus-zero",
        a + c,
        lambda a, c: a,
        when=lambda a, c: is_real(a) and isinstance(c, int | float) and c == 0,
        why="x + 0 is x, but for -0",
    ),
    RewriteRule.of("negated-difference", -(a - b), lambda a, b: b - a, why=CANCELS),
    RewriteRule.of(
        "negated-difference-from-number",
        -call(aten.rsub.Scalar, a, c),
        lambda a, c: a - c,
        why=CANCELS,
    ),
)
