"""Formulas of pointwise ops: one line per op, named as in PyTorch.

A formula is about one element, with a `Scalar` for each tensor and number. It is the formula for
real numbers: what an op does only against rounding (softplus is linear beyond 20) is left out. An
op that is not listed is read as the ops that PyTorch decomposes it into.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from pullback.prove import scalars as s
from pullback.prove.scalars import Outside, Scalar, case, known_number, select

ZERO, ONE, TWENTY = known_number(0), known_number(1), known_number(20)
HALF = known_number(Fraction(1, 2))

# ---- functions of one number ----


def _sigmoid(x: Scalar) -> Scalar:
    return 1 / (1 + s.exp(-x))


def _tanh(x: Scalar) -> Scalar:
    return (s.exp(2 * x) - 1) / (s.exp(2 * x) + 1)


def _sinh(x: Scalar) -> Scalar:
    return (s.exp(x) - s.exp(-x)) / 2


def _cosh(x: Scalar) -> Scalar:
    return (s.exp(x) + s.exp(-x)) / 2


def _relu(x: Scalar) -> Scalar:
    return case(x, ZERO, ZERO, x)


def _abs(x: Scalar) -> Scalar:
    return case(x, -x, ZERO, x)


def _sign(x: Scalar) -> Scalar:
    return case(x, -ONE, ZERO, ONE)


def _softplus(x: Scalar, beta: Scalar = ONE, threshold: Scalar = TWENTY) -> Scalar:
    smooth = s.log(1 + s.exp(beta * x)) / beta
    return _cut_off(beta * x, threshold, smooth, x)


def _softplus_backward(g: Scalar, x: Scalar, beta: Scalar, threshold: Scalar) -> Scalar:
    return _cut_off(beta * x, threshold, g * _sigmoid(beta * x), g)


def _cut_off(x: Scalar, threshold: Scalar, below: Scalar, above: Scalar) -> Scalar:
    """`below`, and `above` beyond a threshold that is there for more than rounding."""
    return (
        below
        if (s.constant_value(threshold) or 0) >= 15
        else case(x - threshold, below, below, above)
    )


def _logit_backward(g: Scalar, x: Scalar, eps: Scalar | None = None) -> Scalar:
    slope = g / (x * (1 - x))
    if eps is None:
        return slope
    return case(x - eps, ZERO, slope, case(x - (1 - eps), slope, slope, ZERO))


def _clamp(x: Scalar, min: Scalar | None = None, max: Scalar | None = None) -> Scalar:
    above = x if min is None else s.larger(x, min)
    return above if max is None else _smaller(above, max)


def _smaller(a: Scalar, b: Scalar) -> Scalar:
    return case(a - b, a, a, b)


# ---- functions of two numbers ----


def _add(a: Scalar, b: Scalar, alpha: Scalar = ONE) -> Scalar:
    return a + alpha * b


def _div(a: Scalar, b: Scalar, *, rounding_mode: str | None = None) -> Scalar:
    if rounding_mode is not None:
        raise Outside(f"division with rounding_mode={rounding_mode!r}")
    return a / b


def _xlogy(x: Scalar, y: Scalar) -> Scalar:
    return case(x, x * s.log(y), ZERO, x * s.log(y))


def _logical(x: Scalar) -> Scalar:
    return case(x, ONE, ZERO, ONE)


def _either(a: Scalar, b: Scalar) -> Scalar:
    return case(_logical(a) + _logical(b), ZERO, ZERO, ONE)


def _masked_fill(x: Scalar, mask: Scalar, value: Scalar) -> Scalar:
    return select(mask, value, x)


def _not(x: Scalar) -> Scalar:
    return 1 - _logical(x)


POINTWISE: dict[str, Callable[..., Scalar]] = {
    # arithmetic
    "add": _add,
    "sub": lambda a, b, alpha=ONE: a - alpha * b,
    "rsub": lambda a, b, alpha=ONE: b - alpha * a,
    "mul": lambda a, b: a * b,
    "div": _div,
    "true_divide": _div,
    "neg": lambda x: -x,
    "reciprocal": lambda x: 1 / x,
    "square": lambda x: x * x,
    "sqrt": lambda x: x**HALF,
    "rsqrt": lambda x: x**-HALF,
    "pow": lambda x, y: x**y,
    "hypot": lambda a, b: (a * a + b * b) ** HALF,
    # exponentials and logarithms
    "exp": s.exp,
    "exp2": lambda x: s.exp(x * s.log(known_number(2))),
    "expm1": lambda x: s.exp(x) - 1,
    "log": s.log,
    "log2": lambda x: s.log(x) / s.log(known_number(2)),
    "log10": lambda x: s.log(x) / s.log(known_number(10)),
    "log1p": lambda x: s.log(1 + x),
    "xlogy": _xlogy,
    "logaddexp": lambda a, b: s.log(s.exp(a) + s.exp(b)),
    # circles and hyperbolas
    "sin": s.sin,
    "cos": s.cos,
    "tan": lambda x: s.sin(x) / s.cos(x),
    "asin": s.asin,
    "acos": s.acos,
    "atan": s.atan,
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "asinh": s.asinh,
    "acosh": s.acosh,
    "atanh": s.atanh,
    # special functions
    "erf": s.erf,
    "erfc": lambda x: 1 - s.erf(x),
    "lgamma": s.lgamma,
    "digamma": s.digamma,
    # steps
    "abs": _abs,
    "sign": _sign,
    "sgn": _sign,
    "maximum": s.larger,
    "minimum": _smaller,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _smaller,
    "floor": s.floor,
    "ceil": s.ceil,
    "where": select,
    "masked_fill": _masked_fill,
    "fill": lambda x, value: value,
    # comparisons
    "gt": s.greater,
    "lt": lambda a, b: s.greater(b, a),
    "ge": lambda a, b: 1 - s.greater(b, a),
    "le": lambda a, b: 1 - s.greater(a, b),
    "eq": s.equal_to,
    "ne": lambda a, b: 1 - s.equal_to(a, b),
    "logical_and": lambda a, b: _logical(a) * _logical(b),
    "logical_or": _either,
    "logical_not": _not,
    "bitwise_and": lambda a, b: a * b,
    "bitwise_or": _either,
    "bitwise_not": _not,
    # activations
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "softplus": _softplus,
    "softplus_backward": _softplus_backward,
    "relu": _relu,
    "logit_backward": _logit_backward,
}
