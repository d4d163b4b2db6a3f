"""Broadcasting: an `expand` before an op that broadcasts by itself is dropped, or moves behind it.

Only for ops whose result is correctly rounded, so that it depends on the operands alone. An `exp`
may round differently where a kernel takes another loop for other strides.
"""

from __future__ import annotations

from typing import Any

from pullback.graph.rewrite import Table, rule
from pullback.graph.values import Value, aten, same_kind, same_sizes, tensor_of

ROUNDED = (
    *(aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor, aten.rsub.Scalar),
    *(aten.neg.default, aten.abs.default, aten.sign.default, aten.relu.default),
    *(aten.reciprocal.default, aten.sqrt.default, aten._to_copy.default),
    *(aten.where.self, aten.masked_fill.Scalar, aten.maximum.default, aten.minimum.default),
    *(aten.clamp.default, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor),
    *(aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor),
    *(aten.gt.Tensor, aten.ge.Tensor, aten.logical_not.default, aten.bitwise_not.default),
    *(aten.eq.Scalar, aten.ne.Scalar, aten.lt.Scalar, aten.le.Scalar),
    *(aten.gt.Scalar, aten.ge.Scalar),
)

WHY = "each element is computed from the same operands and rounded once, wherever it stands"


@rule("expanded-operand", *ROUNDED, why=WHY, keeps_strides=False)
def expanded_operand(node: Value) -> Any:
    """x.expand_as(y) * y -> x * y, and x.expand(s) * 2 -> (x * 2).expand(s)"""
    args = node.args
    bare = [_unexpanded(arg) for arg in args]
    if all(arg is other for arg, other in zip(args, bare, strict=True)):
        return None
    result = node.maker.call(node.target, *bare, **node.kwargs)
    if same_kind(result.val, node.val):
        return result
    sizes = _sizes_of(node, args)
    return None if sizes is None else result.expand(sizes)


@rule(
    "expanded-twice",
    aten.expand.default,
    why="repeating numbers along one dimension, then along another, is repeating along both",
)
def expanded_twice(node: Value) -> Any:
    """x.expand(a).expand(b) -> x.expand(b)"""
    inner, shape = node.args
    if not _is_expand(inner) or -1 in node.args[1]:
        return None
    return inner.args[0].expand(shape)


@rule(
    "expanded-then-unsqueezed",
    aten.unsqueeze.default,
    why="a dimension of size one may be there before numbers are repeated along the others",
)
def expanded_then_unsqueezed(node: Value) -> Any:
    """x.expand(n).unsqueeze(1) -> x.unsqueeze(1).expand(n, 1)"""
    inner, dim = node.args
    if not _is_expand(inner) or -1 in inner.args[1]:
        return None
    source, sizes = inner.args
    dim = dim % (inner.dim() + 1)
    behind = inner.dim() - dim  # how many dimensions follow the new one
    narrow = source.unsqueeze(source.dim() - behind) if source.dim() > behind else source
    return narrow.expand([*sizes[:dim], 1, *sizes[dim:]])


def _is_expand(arg: Any) -> bool:
    return isinstance(arg, Value) and arg.target == aten.expand.default


def _unexpanded(arg: Any) -> Any:
    return arg.args[0] if _is_expand(arg) else arg


def _sizes_of(node: Value, args: Any) -> Any:
    """The sizes that one of the expanded arguments was given, if they are those of the result."""
    for arg in filter(_is_expand, args):
        sizes = arg.args[1]
        expanded = tensor_of(arg.node)
        if expanded is not None and same_sizes(expanded.shape, node.val.shape):
            return None if -1 in sizes else sizes
    return None


TABLE: Table = (expanded_operand, expanded_twice, expanded_then_unsqueezed)
