"""Numbers: neutral factors and summands, and constant tensors that are numbers.

A complex number is left alone: PyTorch multiplies it by `1 + 0j`, and infinity times zero is NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from pullback.graph.cost import op_name
from pullback.graph.patterns import any_number, tensors
from pullback.graph.rewrite import RewriteRule, Table, rule
from pullback.graph.values import Value, aten, same_kind, tensor_of

(a,) = tensors("a")
c = any_number("c")


def is_real(a: Any, b: Any = None, **_: Any) -> bool:
    """Whether neither of two operands is complex."""
    tensors = [x.val for x in (a, b) if isinstance(x, Value)]
    return not any(isinstance(x, torch.Tensor) and x.is_complex() for x in tensors)


def is_negative_zero(a: Value, c: Any) -> bool:
    """Whether adding `c` changes nothing, not even the sign of a zero."""
    if not a.dtype.is_floating_point:
        return isinstance(c, int) and c == 0
    return isinstance(c, float) and c == 0 and math.copysign(1, c) < 0


@rule(
    "scalar-overload",
    *(aten.mul.Scalar, aten.div.Scalar, aten.add.Scalar, aten.sub.Scalar),
    why="PyTorch wraps the number in a tensor and calls the other overload",
)
def scalar_overload(node: Value) -> Any:
    """mul.Scalar(x, c) -> mul.Tensor(x, c)"""
    if len(node.args) != 2 or node.kwargs:
        return None
    wider: Any = {
        aten.mul.Scalar: aten.mul.Tensor,
        aten.div.Scalar: aten.div.Tensor,
        aten.add.Scalar: aten.add.Tensor,
        aten.sub.Scalar: aten.sub.Tensor,
    }
    return node.maker.call(wider[node.target], *node.args)


FILLS = {
    **dict.fromkeys(["full", "full_like", "fill"], 1),
    **dict.fromkeys(["new_full"], 2),
    **dict.fromkeys(["scalar_tensor"], 0),
}
ONES = ("ones", "ones_like", "new_ones")
ZEROS = ("zeros", "zeros_like", "new_zeros")


def constant_of(arg: Any) -> Any:
    """The number that every element of a tensor is, or None if that is not known."""
    if not isinstance(arg, Value) or tensor_of(arg.node) is None:
        return None
    name = op_name(arg.node)
    if name == "expand":
        return constant_of(arg.args[0])
    if name in ONES:
        return 1
    if name in ZEROS:
        return 0
    if name not in FILLS or len(arg.args) <= FILLS[name]:
        return None
    fill = arg.args[FILLS[name]]
    return fill if isinstance(fill, int | float) and not isinstance(fill, bool) else None


def holds(dtype: torch.dtype, fill: float) -> bool:
    """Whether a tensor of `dtype` holds the number without rounding it."""
    return not dtype.is_complex and torch.tensor(fill, dtype=dtype).item() == fill


@rule(
    "constant-operand",
    *(aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor),
    why="the op computes with the number as the tensor holds it, if the tensor did not round it",
)
def constant_operand(node: Value) -> Any:
    """x * ones_like(x) -> x * 1, and ones_like(x) - x -> 1 - x"""
    if node.kwargs or len(node.args) != 2 or not is_real(node):
        return None
    left, right = node.args
    if (fill := constant_of(right)) is not None and isinstance(left, Value):
        return node.maker.call(node.target, left, fill) if says_as_much(node, right, fill) else None
    if not isinstance(right, Value):
        return None
    if (fill := constant_of(left)) is None or not says_as_much(node, left, fill):
        return None
    return fill - right if node.target == aten.sub.Tensor else right.made(node.target, fill)


def says_as_much(node: Value, constant: Value, fill: float) -> bool:
    """Whether a number says as much as the tensor that holds it.

    A product with zeros is left as it is: it is zero but for infinities, and `0 * x` tells less
    than the name that the user has for the zeros.
    """
    return holds(constant.dtype, fill) and not (fill == 0 and node.target == aten.mul.Tensor)


@rule(
    "constant-bound",
    *(aten.clamp_min.Tensor, aten.clamp_max.Tensor, aten.maximum.default, aten.minimum.default),
    why="a bound is compared as the tensor holds it: a number is rounded to the dtype just so",
)
def constant_bound(node: Value) -> Any:
    """x.clamp_min(full_like(x, c)) -> x.clamp_min(c)"""
    source, bound = node.args
    fill = constant_of(bound)
    # Of two zeros the larger is either, so that the sign of the result is left open.
    if not fill or bound.dtype != source.dtype or not same_kind(source.val, node.val):
        return None
    is_least = node.target in (aten.clamp_min.Tensor, aten.maximum.default)
    return source.made(aten.clamp_min.default if is_least else aten.clamp_max.default, fill)


TABLE: Table = (
    scalar_overload,
    constant_operand,
    RewriteRule.of(
        "times-one", a * 1, lambda a: a, when=is_real, why="x * 1 is x, also for -0, inf, NaN"
    ),
    RewriteRule.of(
        "over-one", a / 1, lambda a: a, when=is_real, why="x / 1 is x, also for -0, inf, NaN"
    ),
    RewriteRule.of(
        "times-minus-one",
        a * -1,
        lambda a: -a,
        when=is_real,
        why="both change the sign and nothing else",
    ),
    RewriteRule.of(
        "minus-zero",
        a - 0,
        lambda a: a,
        when=is_real,
        why="x - 0 is x: -0 - 0 is -0 when rounding to nearest",
    ),
    RewriteRule.of(
        "plus-nothing",
        a + c,
        lambda a, c: a,
        when=is_negative_zero,
        why="x + (-0.0) is x. Not x + 0.0: that turns -0 into 0. Integers have one zero",
    ),
    constant_bound,
    RewriteRule.of(
        "power-one",
        a**1,
        lambda a: a,
        why="`pow` copies when the exponent is 1",
        keeps_strides=False,
    ),
)
