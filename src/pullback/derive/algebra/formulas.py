"""What the ops of a graph compute, in formulas: one line per op, named as in PyTorch.

`POINTWISE` is about one element, with a `Scalar` for each tensor and number. `GRIDWISE` is about
whole grids: sums, and what is made of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from pullback.derive.algebra import scalars as s
from pullback.derive.algebra.grids import Grid
from pullback.derive.algebra.scalars import Outside, Scalar, case, number, where

ZERO, ONE, HALF = number(0), number(1), number(Fraction(1, 2))

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


def _softplus(x: Scalar, beta: Scalar = ONE, threshold: Scalar = number(20)) -> Scalar:
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


def _elu(
    x: Scalar, alpha: Scalar = ONE, scale: Scalar = ONE, input_scale: Scalar = ONE
) -> Scalar:
    low = scale * alpha * (s.exp(input_scale * x) - 1)
    return case(x, low, low, scale * x)


def _elu_backward(
    g: Scalar, alpha: Scalar, scale: Scalar, input_scale: Scalar, is_result: bool, x: Scalar
) -> Scalar:
    curve = x + scale * alpha if is_result else scale * alpha * s.exp(input_scale * x)
    low = g * input_scale * curve
    return case(x, low, low, g * scale)


def _leaky_relu(x: Scalar, slope: Scalar = number(Fraction(1, 100))) -> Scalar:
    return case(x, slope * x, ZERO, x)


def _leaky_relu_backward(g: Scalar, x: Scalar, slope: Scalar, is_result: bool = False) -> Scalar:
    return case(x, slope * g, slope * g, g)


def _threshold(x: Scalar, threshold: Scalar, value: Scalar) -> Scalar:
    return case(x - threshold, value, value, x)


def _threshold_backward(g: Scalar, x: Scalar, threshold: Scalar) -> Scalar:
    return case(x - threshold, ZERO, ZERO, g)


def _clamp(x: Scalar, low: Scalar | None = None, high: Scalar | None = None) -> Scalar:
    above = x if low is None else s.larger(x, low)
    return above if high is None else _smaller(above, high)


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
    "log_sigmoid_backward": lambda g, x, buffer: g * _sigmoid(-x),
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


# ---- sums, and what is made of them ----

Dims = Sequence[int] | int | None


def _sum(x: Grid, dims: Dims = None, keepdim: bool = False, **_: Any) -> Grid:
    return x.reduced(dims, keepdim, s.total)


def _mean(x: Grid, dims: Dims = None, keepdim: bool = False, **_: Any) -> Grid:
    return x.reduced(dims, keepdim, lambda each: s.total(each) / len(each))


def _largest(x: Grid, dims: Dims = None, keepdim: bool = False) -> Grid:
    return x.reduced(dims, keepdim, lambda each: _fold(each, s.larger))


def _smallest(x: Grid, dims: Dims = None, keepdim: bool = False) -> Grid:
    return x.reduced(dims, keepdim, lambda each: _fold(each, _smaller))


def _overall(name: str, reduce: Callable[[Grid], Grid]) -> Callable[..., Grid]:
    """`reduce` of all elements; along a dimension, `max` and `min` also give places."""

    def apply(x: Grid, *rest: Any) -> Grid:
        if rest:
            raise Outside(f"`{name}` along a dimension")
        return reduce(x)

    return apply


def _fold(each: Sequence[Scalar], join: Callable[[Scalar, Scalar], Scalar]) -> Scalar:
    kept = each[0]
    for scalar in each[1:]:
        kept = join(kept, scalar)
    return kept


def _var(
    x: Grid,
    dims: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Grid:
    away = x - _mean(x, dims, True)
    fewer = 1 if correction is None else correction
    return (away * away).reduced(dims, keepdim, lambda each: s.total(each) / (len(each) - fewer))


def _root(x: Grid) -> Grid:
    return x.map(lambda each: each**HALF)


def _std(x: Grid, dims: Dims = None, **settings: Any) -> Grid:
    return _root(_var(x, dims, **settings))


def _var_mean(x: Grid, dims: Dims = None, *, keepdim: bool = False, **settings: Any) -> Any:
    return _var(x, dims, keepdim=keepdim, **settings), _mean(x, dims, keepdim)


def _norm(x: Grid, order: float = 2, dims: Dims = None, keepdim: bool = False, **_: Any) -> Grid:
    if order == 2:
        return _root(_sum(x * x, dims, keepdim))
    if order == 1:
        return _sum(x.map(_abs), dims, keepdim)
    raise Outside(f"the norm of order {order}")


def _softmax(x: Grid, dim: int, *_: Any) -> Grid:
    raised = x.map(s.exp)
    return raised / _sum(raised, dim, True)


def _log_softmax(x: Grid, dim: int, *_: Any) -> Grid:
    return x - _logsumexp(x, dim, True)


def _softmax_backward(g: Grid, y: Grid, dim: int, *_: Any) -> Grid:
    return y * (g - _sum(g * y, dim, True))


def _log_softmax_backward(g: Grid, y: Grid, dim: int, *_: Any) -> Grid:
    return g - y.map(s.exp) * _sum(g, dim, True)


def _logsumexp(x: Grid, dims: Dims, keepdim: bool = False) -> Grid:
    return _sum(x.map(s.exp), dims, keepdim).map(s.log)


def _log_sigmoid_forward(x: Grid) -> tuple[Grid, Grid]:
    """The value, and a buffer that nothing depends on."""
    return x.map(lambda each: -s.log(1 + s.exp(-each))), x


def _layer_norm(
    x: Grid, sizes: Sequence[int], weight: Grid | None, bias: Grid | None, eps: float
) -> tuple[Grid, Grid, Grid]:
    dims = list(range(-len(sizes), 0))
    mean = _mean(x, dims, True)
    away = x - mean
    scale = _mean(away * away, dims, True).map(lambda each: (each + eps) ** -HALF)
    normal = away * scale
    scaled = normal if weight is None else normal * weight
    return scaled if bias is None else scaled + bias, mean, scale


def _layer_norm_backward(
    g: Grid,
    x: Grid,
    sizes: Sequence[int],
    mean: Grid,
    scale: Grid,
    weight: Grid | None,
    bias: Grid | None,
    wanted: Sequence[bool],
) -> tuple[Grid | None, ...]:
    inner = list(range(-len(sizes), 0))
    outer = list(range(len(x.shape) - len(sizes)))
    normal = (x - mean) * scale
    scaled = g if weight is None else g * weight
    centred = scaled - _mean(scaled, inner, True) - normal * _mean(scaled * normal, inner, True)
    of_weight = _sum(g * normal, outer) if outer else g * normal
    of_bias = _sum(g, outer) if outer else g
    both = wanted[1] and weight is not None, wanted[2] and bias is not None
    return (
        centred * scale if wanted[0] else None,
        of_weight if both[0] else None,
        of_bias if both[1] else None,
    )


def _mse(x: Grid, y: Grid, reduction: int = 1) -> Grid:
    away = x - y
    square = away * away
    return {0: lambda: square, 1: lambda: _mean(square), 2: lambda: _sum(square)}[reduction]()


def _mse_backward(g: Grid, x: Grid, y: Grid, reduction: int) -> Grid:
    count = len(x.scalars()) if reduction == 1 else 1
    return g * (x - y).map(lambda each: each * 2 / count)


def _cumsum(x: Grid, dim: int, **_: Any) -> Grid:
    return x.running(dim, s.total)


GRIDWISE: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "mean": _mean,
    "amax": _largest,
    "amin": _smallest,
    "max": _overall("max", _largest),
    "min": _overall("min", _smallest),
    "var": _var,
    "std": _std,
    "var_mean": _var_mean,
    "linalg_vector_norm": _norm,
    "cumsum": _cumsum,
    "_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax": _log_softmax,
    "_log_softmax_backward_data": _log_softmax_backward,
    "logsumexp": _logsumexp,
    "log_sigmoid_forward": _log_sigmoid_forward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "mse_loss": _mse,
    "mse_loss_backward": _mse_backward,
}
