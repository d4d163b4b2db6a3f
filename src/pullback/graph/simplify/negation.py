"""Negation: minus signs meet and cancel, or move outwards until a sum takes them in.

Changing a sign commutes with rounding to nearest, and the sign of a product or quotient is the
product of the signs, zeros included. Complex numbers are left alone: their products are sums, and
the sign of a zero sum does not follow.
"""

from __future__ import annotations

from typing import Any

import torch

from pullback.graph.patterns import also_shared, any_number, tensors
from pullback.graph.rewrite import RewriteRule, Table, rule
from pullback.graph.simplify.numbers import is_real
from pullback.graph.values import Value, aten, same

a, b = tensors("a b")
c = any_number("c")

ROUNDS = "changing a sign commutes with rounding"


def is_as_large(a: Value, b: Value) -> bool:
    """Whether the negated factor is as large as the product: else moving the sign costs work."""
    if not isinstance(b.val, torch.Tensor):  # a size
        return is_real(a)
    return is_real(a, b) and a.dim() >= b.dim() and _covers(a, b)


def is_literal(a: Value, c: Any) -> bool:
    """Whether a real tensor meets a number whose sign can be changed in the text."""
    return is_real(a) and isinstance(c, int | float)


def _covers(a: Value, b: Value) -> bool:
    tail = a.val.shape[a.dim() - b.dim() :]
    pairs = zip(tail, b.val.shape, strict=True)
    return all(same(x, y) or same(y, 1) for x, y in pairs)


def opposite(term: Any) -> Any:
    """-term with a minus sign less, or None if a term used once has none to take away."""
    if not isinstance(term, Value) or not term.is_used_once or not is_real(term):
        return None
    if term.target == aten.neg.default:
        return term.args[0]
    if term.target not in (aten.mul.Tensor, aten.div.Tensor) or term.kwargs:
        return None
    left, right = term.args
    if isinstance(right, int | float) and right < 0:
        return left.made(term.target, -right)
    if (bare := opposite(left)) is not None:
        return bare.made(term.target, right)
    if (bare := opposite(right)) is not None:
        return left.made(term.target, bare)
    return None


SIGNED = "a - b is a + (-b) by IEEE, and the sign of a product is the product of the signs"


@rule("added-negative", aten.add.Tensor, why=SIGNED)
def added_negative(node: Value) -> Any:
    """a + -b -> a - b, and a + -2 * b -> a - 2 * b"""
    if len(node.args) != 2 or node.kwargs:
        return None
    for a, b in (node.args, node.args[::-1]):
        bare = opposite(b)
        if bare is not None and isinstance(a, Value):
            return a - bare
    return None


@rule("subtracted-negative", aten.sub.Tensor, why=SIGNED)
def subtracted_negative(node: Value) -> Any:
    """a - -b -> a + b, and a - -2 * b -> a + 2 * b"""
    if len(node.args) != 2 or node.kwargs:
        return None
    a, b = node.args
    bare = opposite(b)
    return None if bare is None else a + bare


ABSORBING = (aten.mul.Tensor, aten.div.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.neg.default)


@rule("negative-factor", aten.mul.Tensor, why=ROUNDS)
def negative_factor(node: Value) -> Any:
    """-a * b -> -(a * b), where every user of -a takes the sign in"""
    for negative, b in (node.args, node.args[::-1]):
        if not isinstance(negative, Value) or negative.target != aten.neg.default:
            continue
        a = negative.args[0]
        is_absorbed = all(user.target in ABSORBING for user in negative.node.users)
        if isinstance(b, Value) and is_absorbed and is_as_large(a, b):
            return -(a * b)
    return None


MOVES = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)


@rule("negated-view", *MOVES, why="a view moves numbers and leaves them as they are")
def negated_view(node: Value) -> Any:
    """(-x).view(s) -> -(x.view(s))"""
    inner, *rest = node.args
    if inner.target != aten.neg.default or not inner.is_used_once:
        return None
    source = inner.args[0]
    return -source.made(node.target, *rest, **node.kwargs)


TABLE: Table = (
    RewriteRule.of(
        "double-negation", -also_shared(-a), lambda a: a, why="the sign is changed twice"
    ),
    added_negative,
    subtracted_negative,
    RewriteRule.of(
        "negative-times-number", -a * c, lambda a, c: a * -c, when=is_literal, why=ROUNDS
    ),
    RewriteRule.of("negated-multiple", -(a * c), lambda a, c: a * -c, when=is_literal, why=ROUNDS),
    negative_factor,
    RewriteRule.of(
        "negative-dividend", -a / b, lambda a, b: -(a / b), when=is_as_large, why=ROUNDS
    ),
    RewriteRule.of("negative-over-number", -a / c, lambda a, c: -(a / c), when=is_real, why=ROUNDS),
    RewriteRule.of(
        "negative-divisor",
        a / -b,
        lambda a, b: -(a / b),
        when=lambda a, b: is_as_large(b, a),
        why=ROUNDS,
    ),
    negated_view,
)
