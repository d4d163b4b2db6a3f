"""What pointwise ops compute, in formulas: one line per op, named as in PyTorch.

A formula is about one element, with a `Scalar` for each tensor and number. It is the formula of the
real numbers: what an op does only against rounding (softplus is linear beyond 20) is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from pullback.prove import scalars as s
from pullback.prove.scalars import Outside, Scalar, case, number, where

ZERO, ONE, TWENTY = number(0), number(1), number(20)
HALF, HUNDREDTH = number(Fraction(1, 2)), number(Fraction(1, 100))

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


def _normal(x: Scalar) -> Scalar:
    """The cumulative normal distribution."""
    return HALF * (1 + s.erf(x / number(2) ** HALF))


def _density(x: Scalar) -> Scalar:
    """The normal density."""
    return s.exp(-x * x / 2) / (2 * s.pi()) ** HALF


def _softplus(x: Scalar, beta: Scalar = ONE, threshold: Scalar = TWENTY) -> Scalar:
    smooth = s.log(1 + s.exp(beta * x)) / beta
    return _cut_off(beta * x, threshold, smooth, x)


def _softplus_backward(g: Scalar, x: Scalar, beta: Scalar, threshold: Scalar) -> Scalar:
    return _cut_off(beta * x, threshold, g * _sigmoid(beta * x), g)


def _cut_off(x: Scalar, threshold: Scalar, below: Scalar, above: Scalar) -> Scalar:
    """`below`; but where a threshold is no mere matter of rounding, `above` beyond it."""
    return below if (s.value_of(threshold) or 0) >= 15 else case(x - threshold, below, below, above)


def _mish_slope(x: Scalar) -> Scalar:
    curve = _tanh(s.log(1 + s.exp(x)))
    return curve + x * (1 - curve * curve) * _sigmoid(x)


# ---- activations with settings ----


def _gelu(x: Scalar, *, approximate: str = "none") -> Scalar:
    if approximate == "none":
        return x * _normal(x)
    return HALF * x * (1 + _tanh(_inner(x)))


def _gelu_backward(g: Scalar, x: Scalar, *, approximate: str = "none") -> Scalar:
    if approximate == "none":
        return g * (_normal(x) + x * _density(x))
    curve, cubic = _tanh(_inner(x)), number(0.044715)
    slope = (2 / s.pi()) ** HALF * (1 + 3 * cubic * x * x)
    return g * HALF * ((1 + curve) + x * (1 - curve * curve) * slope)


def _inner(x: Scalar) -> Scalar:
    return (2 / s.pi()) ** HALF * (x + number(0.044715) * x * x * x)


def _elu(x: Scalar, alpha: Scalar = ONE, scale: Scalar = ONE, input_scale: Scalar = ONE) -> Scalar:
    low = scale * alpha * (s.exp(input_scale * x) - 1)
    return case(x, low, low, scale * x)


def _elu_backward(
    g: Scalar, alpha: Scalar, scale: Scalar, input_scale: Scalar, is_result: bool, x: Scalar
) -> Scalar:
    curve = x + scale * alpha if is_result else scale * alpha * s.exp(input_scale * x)
    low = g * input_scale * curve
    return case(x, low, low, g * scale)


def _leaky_relu(x: Scalar, slope: Scalar = HUNDREDTH) -> Scalar:
    return case(x, slope * x, ZERO, x)


def _leaky_relu_backward(g: Scalar, x: Scalar, slope: Scalar, is_result: bool = False) -> Scalar:
    return case(x, slope * g, slope * g, g)


def _threshold(x: Scalar, threshold: Scalar, value: Scalar) -> Scalar:
    return case(x - threshold, value, value, x)


def _threshold_backward(g: Scalar, x: Scalar, threshold: Scalar) -> Scalar:
    return case(x - threshold, ZERO, ZERO, g)


def _clamp(x: Scalar, min: Scalar | None = None, max: Scalar | None = None) -> Scalar:
    above = x if min is None else s.larger(x, min)
    return above if max is None else _smaller(above, max)


def _smaller(a: Scalar, b: Scalar) -> Scalar:
    return case(a - b, a, a, b)


def _hardtanh(x: Scalar, low: Scalar = -ONE, high: Scalar = ONE) -> Scalar:
    return _clamp(x, low, high)


def _inside(g: Scalar, x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """`g` where x is between the ends, without them; otherwise 0."""
    return case(x - low, ZERO, ZERO, case(x - high, g, ZERO, ZERO))


def _hardsigmoid(x: Scalar) -> Scalar:
    return _clamp(x / 6 + HALF, ZERO, ONE)


def _hardswish_backward(g: Scalar, x: Scalar) -> Scalar:
    middle = g * (x / 3 + HALF)
    return case(x + 3, ZERO, ZERO, case(x - 3, middle, g, g))


def _logit(x: Scalar, eps: Scalar | None = None) -> Scalar:
    inside = x if eps is None else _clamp(x, eps, 1 - eps)
    return s.log(inside / (1 - inside))


def _logit_backward(g: Scalar, x: Scalar, eps: Scalar | None = None) -> Scalar:
    slope = g / (x * (1 - x))
    if eps is None:
        return slope
    return case(x - eps, ZERO, slope, case(x - (1 - eps), slope, slope, ZERO))


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
    return where(mask, value, x)


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
    "addcmul": lambda x, a, b, value=ONE: x + value * a * b,
    "addcdiv": lambda x, a, b, value=ONE: x + value * a / b,
    "lerp": lambda a, b, w: a + w * (b - a),
    "hypot": lambda a, b: (a * a + b * b) ** HALF,
    # exponentials and logarithms
    "exp": s.exp,
    "exp2": lambda x: s.exp(x * s.log(number(2))),
    "expm1": lambda x: s.exp(x) - 1,
    "log": s.log,
    "log2": lambda x: s.log(x) / s.log(number(2)),
    "log10": lambda x: s.log(x) / s.log(number(10)),
    "log1p": lambda x: s.log(1 + x),
    "logaddexp": lambda a, b: s.log(s.exp(a) + s.exp(b)),
    "xlogy": _xlogy,
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
    "tanh_backward": lambda g, y: g * (1 - y * y),
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
    "where": where,
    "masked_fill": _masked_fill,
    "fill": lambda x, value: value,
    # comparisons
    "gt": s.greater,
    "lt": lambda a, b: s.greater(b, a),
    "ge": lambda a, b: 1 - s.greater(b, a),
    "le": lambda a, b: 1 - s.greater(a, b),
    "eq": s.equal,
    "ne": lambda a, b: 1 - s.equal(a, b),
    "logical_and": lambda a, b: _logical(a) * _logical(b),
    "logical_or": _either,
    "logical_not": _not,
    "bitwise_and": lambda a, b: a * b,
    "bitwise_or": _either,
    "bitwise_not": _not,
    # activations
    "sigmoid": _sigmoid,
    "sigmoid_backward": lambda g, y: g * y * (1 - y),
    "silu": lambda x: x * _sigmoid(x),
    "silu_backward": lambda g, x: g * _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "softplus": _softplus,
    "softplus_backward": _softplus_backward,
    "mish": lambda x: x * _tanh(s.log(1 + s.exp(x))),
    "mish_backward": lambda g, x: g * _mish_slope(x),
    "relu": _relu,
    "threshold": _threshold,
    "threshold_backward": _threshold_backward,
    "leaky_relu": _leaky_relu,
    "leaky_relu_backward": _leaky_relu_backward,
    "elu": _elu,
    "elu_backward": _elu_backward,
    "hardtanh": _hardtanh,
    "hardtanh_backward": _inside,
    "hardsigmoid": _hardsigmoid,
    "hardsigmoid_backward": lambda g, x: _inside(g / 6, x, number(-3), number(3)),
    "hardswish": lambda x: x * _hardsigmoid(x),
    "hardswish_backward": _hardswish_backward,
    "logit": _logit,
    "logit_backward": _logit_backward,
}
