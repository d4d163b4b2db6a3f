"""Activations: the derivatives of pointwise functions and of softmax, written out.

Those of `elu`, `hardtanh`, `hardswish` and `hardsigmoid` stay ops: at NaN, the kernels for the
CPU give one thing where they take several numbers at once and another for those left over, which no
formula does.
"""

from __future__ import annotations

import math
from typing import Any

from pullback.graph.rewrite import Table
from pullback.graph.simplify.composites import composite
from pullback.graph.values import aten, named_value


def sigmoid_backward(g: Any, y: Any) -> Any:
    """From the output y."""
    return g * (1 - y) * y


def tanh_backward(g: Any, y: Any) -> Any:
    """From the output y."""
    return g * (1 - y**2)


def threshold_backward(g: Any, x: Any, threshold: float) -> Any:
    """`relu` among others, from its output or its input. Where x is NaN, the gradient passes."""
    return g.masked_fill(x <= threshold, 0)


def leaky_relu_backward(g: Any, x: Any, slope: float, _is_result: bool) -> Any:
    """The sign of x is the sign of the result."""
    return g.where(x > 0, g * slope)


def silu_backward(g: Any, x: Any) -> Any:
    """x sigmoid(x)."""
    s = named_value("s", x.sigmoid())
    return g * s * (1 + x * (1 - s))


def gelu_backward(g: Any, x: Any, approximate: str = "none") -> Any:
    """x Φ(x): exact with `erf`, or the approximation with `tanh`."""
    if approximate == "tanh":
        scale, cubic = math.sqrt(2 / math.pi), 0.044715
        t = named_value("t", (scale * (x + cubic * x**3)).tanh())
        slope = scale * (1 + 3 * cubic * x**2)
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * slope)
    cdf = named_value("cdf", 0.5 * (1 + (x * math.sqrt(0.5)).erf()))
    pdf = named_value("pdf", (-0.5 * x**2).exp() * (1 / math.sqrt(2 * math.pi)))
    return g * (cdf + x * pdf)


def mish_backward(g: Any, x: Any) -> Any:
    """x tanh(softplus(x)), with tanh(log(1 + e)) as a quotient of e = exp(x)."""
    # Past 20, tanh(softplus(x)) is 1 in float64, and exp(x) squared must not overflow.
    e = named_value("e", x.clamp(max=20.0).exp())
    t = named_value("t", e * (e + 2) / (e * (e + 2) + 2))
    return g * (t + x * x.sigmoid() * (1 - t**2))


def softplus_backward(g: Any, x: Any, beta: float, threshold: float) -> Any:
    """log(1 + exp(beta x)) / beta, linear past the threshold."""
    return g.where(x * beta > threshold, g * (x * beta).sigmoid())


def log_sigmoid_backward(g: Any, x: Any, _buffer: Any) -> Any:
    """log(sigmoid(x))."""
    return g * (-x).sigmoid()


def softmax_backward(g: Any, y: Any, dim: int, dtype: Any) -> Any:
    """From the output y."""
    return (y * (g - (g * y).sum(dim, keepdim=True))).to(dtype)


def log_softmax_backward(g: Any, y: Any, dim: int, dtype: Any) -> Any:
    """From the output y."""
    return (g - y.exp() * g.sum(dim, keepdim=True)).to(dtype)


TABLE: Table = (
    composite(aten.sigmoid_backward.default, sigmoid_backward),
    composite(aten.tanh_backward.default, tanh_backward),
    composite(aten.threshold_backward.default, threshold_backward),
    composite(aten.leaky_relu_backward.default, leaky_relu_backward),
    composite(aten.silu_backward.default, silu_backward),
    composite(aten.gelu_backward.default, gelu_backward),
    composite(aten.mish_backward.default, mish_backward),
    composite(aten.softplus_backward.default, softplus_backward),
    composite(aten.log_sigmoid_backward.default, log_sigmoid_backward),
    composite(aten._softmax_backward_data.default, softmax_backward),
    composite(aten._log_softmax_backward_data.default, log_softmax_backward),
)
