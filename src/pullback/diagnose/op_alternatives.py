"""Which op a user may have meant: tables of ops that are confused with one another.

Also the ops that an edit may apply to a value, and those that it may remove.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, fx

from pullback.graph.cost import op_name
from pullback.graph.values import aten

ALIKE: tuple[tuple[Any, ...], ...] = (
    (aten.sin.default, aten.cos.default),
    (aten.sinh.default, aten.cosh.default),
    (aten.asin.default, aten.acos.default),
    (aten.exp.default, aten.expm1.default, aten.log.default),
    (aten.log.default, aten.log1p.default, aten.exp.default),
    (aten.sqrt.default, aten.rsqrt.default, aten.reciprocal.default),
    (aten.tanh.default, aten.sigmoid.default),
    (aten.erf.default, aten.erfc.default),
    (aten.abs.default, aten.sign.default, aten.sgn.default),
    (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor),
    (aten.maximum.default, aten.minimum.default),
    (aten.amax.default, aten.amin.default),
    (aten.sum.default, aten.mean.default),
    (aten.sum.dim_IntList, aten.mean.dim),
    (aten.triu.default, aten.tril.default),
    *(
        tuple(getattr(getattr(aten, name), overload) for name in ("gt", "ge", "lt", "le"))
        for overload in ("Scalar", "Tensor")
    ),
)
"""Ops that take the same arguments, and are confused with one another."""

WRAPPERS = {
    *("mul", "div", "add", "sub", "neg", "rsub", "t", "transpose", "permute", "flip"),
    *("sum", "mean", "pow", "exp", "where", "abs", "sign", "conj", "_conj", "clamp"),
}
"""Ops that an edit may remove, leaving one of their operands."""


def alternatives(node: fx.Node) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """What the user may have meant by the op of `node`."""
    args = node.args
    for group in ALIKE:
        if node.target in group:
            yield from ((op, args) for op in group if op != node.target and not is_idle(op, args))
    name = op_name(node)
    if name in ("sub", "div", "mm", "bmm") and len(args) == 2 and isinstance(args[1], fx.Node):
        yield node.target, args[::-1]
    if name == "where" and len(args) == 3:
        yield node.target, (args[0], args[2], args[1])
    if name == "rsub":
        yield from ((op, args) for op in (aten.sub.Tensor, aten.add.Tensor))
    if name in ("add", "sub") and len(args) == 2 and isinstance(args[1], (int, float)):
        yield aten.rsub.Scalar, args
    if node.target in (aten.sum.dim_IntList, aten.mean.dim) and len(args) == 2:
        yield node.target, (*args, True)


def is_idle(op: Any, args: tuple[Any, ...]) -> bool:
    """Whether an op with these arguments would do nothing: a factor of one, a summand of zero."""
    one = 1 if op in (aten.mul.Tensor, aten.div.Tensor, aten.pow.Tensor_Scalar) else 0
    return len(args) == 2 and isinstance(args[1], (int, float)) and args[1] == one


def turns(first: Tensor) -> Iterator[tuple[str, Any, tuple[Any, ...], float]]:
    """Ops that an edit may apply to a value: kind, op, further arguments, cost."""
    yield "sign", aten.neg.default, (), 1.4
    if first.is_complex():
        yield "conjugate", aten.conj_physical.default, (), 1.6
    if first.dim() >= 2:
        yield "transpose", aten.transpose.int, (-2, -1), 1.8
    for dim in range(first.dim()):
        yield "sum", aten.sum.dim_IntList, ([dim], True), 2.2
        yield "mean", aten.mean.dim, ([dim], True), 2.3
        yield "flip", aten.flip.default, ([dim],), 2.4
    if first.dim() > 2:  # as kernels of a convolution
        yield "flip", aten.flip.default, (list(range(2, first.dim())),), 2.4
    if first.dim():
        yield "sum", aten.sum.default, (), 2.2
        yield "mean", aten.mean.default, (), 2.3
    if not first.is_complex():
        yield "square", aten.pow.Tensor_Scalar, (2,), 2.5
        yield "invert", aten.reciprocal.default, (), 2.5
        yield "root", aten.sqrt.default, (), 2.6


def is_wrapper(node: fx.Node) -> bool:
    """Whether an edit may remove an op, and leave one of its operands."""
    return node.op == "call_function" and op_name(node) in WRAPPERS
