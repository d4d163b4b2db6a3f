"""Normalisations, forward and backward, written out with the mean and the inverse deviation."""

from __future__ import annotations

from typing import Any

from pullback.graph.rewrite import Table
from pullback.graph.simplify.composites import composite
from pullback.graph.values import aten, named_value


def normalised_backward(g: Any, xhat: Any, rstd: Any, dims: list[int]) -> Any:
    """The gradient of x through xhat = (x - mean) * rstd, whose cotangent is g."""
    slope = named_value("slope", (g * xhat).mean(dims, keepdim=True))
    return rstd * (g - g.mean(dims, keepdim=True) - xhat * slope)


# ---- layer norm ----


def layer_norm(x: Any, shape: Any, w: Any, b: Any, eps: float) -> Any:
    """The output, the mean and the inverse deviation."""
    dims = list(range(-len(shape), 0))
    mean = named_value("mean", x.mean(dims, keepdim=True))
    rstd = named_value("rstd", (x.var(dims, correction=0, keepdim=True) + eps).rsqrt())
    return scaled(named_value("xhat", (x - mean) * rstd), w, b), mean, rstd


def layer_norm_backward(
    g: Any, x: Any, shape: Any, mean: Any, rstd: Any, w: Any, b: Any, mask: Any
) -> Any:
    """The gradients of x, w and b, as far as the mask asks for them."""
    inner = list(range(-len(shape), 0))
    outer = list(range(x.dim() - len(shape)))
    xhat = named_value("xhat", (x - mean) * rstd)
    grad_xhat = named_value("grad_xhat", g * w) if w is not None else g
    grad_x = normalised_backward(grad_xhat, xhat, rstd, inner) if mask[0] else None
    grad_w = _total(g * xhat, outer) if mask[1] and w is not None else None
    return grad_x, grad_w, _total(g, outer) if mask[2] and b is not None else None


def scaled(x: Any, w: Any, b: Any = None) -> Any:
    """x * w + b, where w and b may be missing."""
    x = x if w is None else x * w
    return x if b is None else x + b


def _total(x: Any, dims: list[int]) -> Any:
    """The sum over `dims`, which may be none."""
    return x.sum(dims) if dims else x


# ---- group norm ----


def group_norm(x: Any, w: Any, b: Any, n: Any, c: Any, area: Any, groups: int, eps: float) -> Any:
    """The output, and the mean and inverse deviation of each group."""
    grouped = x.reshape([n, groups, -1])
    mean = named_value("mean", grouped.mean([-1], keepdim=True))
    rstd = named_value("rstd", (grouped.var([-1], correction=0, keepdim=True) + eps).rsqrt())
    xhat = ((grouped - mean) * rstd).reshape(x.shape)
    return (
        scaled(xhat, per_channel(w, x), per_channel(b, x)),
        mean.squeeze(-1),
        rstd.squeeze(-1),
    )


def group_norm_backward(
    g: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    w: Any,
    n: Any,
    c: Any,
    area: Any,
    groups: int,
    mask: Any,
) -> Any:
    """The gradients of x, w and b, as far as the mask asks for them."""
    mean, rstd = mean.unsqueeze(-1), rstd.unsqueeze(-1)
    grouped = named_value("xhat", (x.reshape([n, groups, -1]) - mean) * rstd)
    outer = [dim for dim in range(x.dim()) if dim != 1]
    grad_x = grad_w = None
    if mask[0]:
        inner = scaled(g, per_channel(w, x)).reshape([n, groups, -1])
        inner = named_value("grad_xhat", inner)
        grad_x = normalised_backward(inner, grouped, rstd, [-1]).reshape(x.shape)
    if mask[1] and w is not None:
        grad_w = (g * grouped.reshape(x.shape)).sum(outer)
    return grad_x, grad_w, g.sum(outer) if mask[2] else None


def per_channel(w: Any, x: Any) -> Any:
    """A weight per channel, in a shape that broadcasts over x."""
    return w if w is None else w.reshape([-1] + [1] * (x.dim() - 2))


# ---- batch norm by the statistics of the batch ----


def batch_norm(x: Any, w: Any, b: Any, training: bool, momentum: float, eps: float) -> Any:
    """The output, and the mean and inverse deviation of each channel."""
    if not training:
        return None
    dims = [dim for dim in range(x.dim()) if dim != 1]
    mean = named_value("mean", x.mean(dims, keepdim=True))
    rstd = named_value("rstd", (x.var(dims, correction=0, keepdim=True) + eps).rsqrt())
    xhat = named_value("xhat", (x - mean) * rstd)
    flat = mean.reshape([x.shape[1]]), rstd.reshape([x.shape[1]])
    return scaled(xhat, per_channel(w, x), per_channel(b, x)), *flat


def batch_norm_backward(
    g: Any,
    x: Any,
    w: Any,
    running_mean: Any,
    running_var: Any,
    mean: Any,
    rstd: Any,
    training: bool,
    eps: float,
    mask: Any,
) -> Any:
    """The gradients of x, w and b, as far as the mask asks for them."""
    if not training:
        return None
    dims = [dim for dim in range(x.dim()) if dim != 1]
    kept = [1, x.shape[1]] + [1] * (x.dim() - 2)
    mean, rstd = mean.reshape(kept), rstd.reshape(kept)
    xhat = named_value("xhat", (x - mean) * rstd)
    grad_xhat = named_value("grad_xhat", g * per_channel(w, x)) if w is not None else g
    grad_x = normalised_backward(grad_xhat, xhat, rstd, dims) if mask[0] else None
    grad_w = (g * xhat).sum(dims) if mask[1] and w is not None else None
    return grad_x, grad_w, g.sum(dims) if mask[2] else None


TABLE: Table = (
    composite(aten.native_layer_norm.default, layer_norm),
    composite(aten.native_layer_norm_backward.default, layer_norm_backward),
    composite(aten.native_group_norm.default, group_norm, is_shaped=True),
    composite(aten.native_group_norm_backward.default, group_norm_backward, is_shaped=True),
    composite(aten._native_batch_norm_legit.no_stats, batch_norm),
    composite(aten.native_batch_norm_backward.default, batch_norm_backward),
)
