"""torch.library custom operators with register_autograd."""
from typing import Optional

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from support import *


# --- matrix power ---------------------------------------------------------
@torch.library.custom_op("blind2::matrix_power", mutates_args=())
def matrix_power(a: Tensor, n: int) -> Tensor:
    return torch.linalg.matrix_power(a, n).clone()


@matrix_power.register_fake
def _(a, n):
    return torch.empty_like(a)


def _mp_setup(ctx, inputs, output):
    a, ctx.n = inputs
    ctx.save_for_backward(a)


def _mp_backward(ctx, g):
    (a,) = ctx.saved_tensors
    at = a.transpose(-1, -2)
    return ctx.n * (torch.linalg.matrix_power(at, ctx.n - 1) @ g), None


matrix_power.register_autograd(_mp_backward, setup_context=_mp_setup)


# --- weighted log-add-exp ---------------------------------------------------
@torch.library.custom_op("blind2::weighted_logaddexp", mutates_args=())
def weighted_logaddexp(x: Tensor, y: Tensor, w: float) -> Tensor:
    m = torch.maximum(x, y)
    return m + torch.log(w * torch.exp(x - m) + (1 - w) * torch.exp(y - m))


@weighted_logaddexp.register_fake
def _(x, y, w):
    return torch.empty_like(x)


def _wl_setup(ctx, inputs, output):
    x, y, ctx.w = inputs
    ctx.save_for_backward(x, y)


def _wl_backward(ctx, g):
    x, y = ctx.saved_tensors
    p = torch.sigmoid(x - y)
    return g * p, g * (1 - p), None


weighted_logaddexp.register_autograd(_wl_backward, setup_context=_wl_setup)


# --- causal depthwise convolution ------------------------------------------
@torch.library.custom_op("blind2::causal_depthwise", mutates_args=())
def causal_depthwise(x: Tensor, k: Tensor) -> Tensor:
    """y[c, t] = sum_j k[c, j] x[c, t - j]"""
    out = torch.zeros_like(x)
    for j in range(k.shape[1]):
        out[:, j:] += k[:, j:j + 1] * x[:, : x.shape[1] - j]
    return out


@causal_depthwise.register_fake
def _(x, k):
    return torch.empty_like(x)


def _cd_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _cd_backward(ctx, g):
    x, k = ctx.saved_tensors
    t = x.shape[1]
    gx = causal_depthwise(g.contiguous(), k)
    gk = torch.stack([(g[:, j:] * x[:, : t - j]).sum(1) for j in range(k.shape[1])], dim=1)
    return gx, gk


causal_depthwise.register_autograd(_cd_backward, setup_context=_cd_setup)


# --- squared distances -------------------------------------------------------
@torch.library.custom_op("blind2::pairwise_sqdist", mutates_args=())
def pairwise_sqdist(x: Tensor, y: Tensor) -> Tensor:
    return (x * x).sum(1)[:, None] + (y * y).sum(1)[None, :] - 2 * x @ y.t()


@pairwise_sqdist.register_fake
def _(x, y):
    return x.new_empty(x.shape[0], y.shape[0])


def _pd_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _pd_backward(ctx, g):
    x, y = ctx.saved_tensors
    gx = 2 * (g.sum(1)[:, None] * x - g @ y)
    gy = 2 * (g.sum(0)[:, None] * y + g.t() @ x)
    return gx, gy


pairwise_sqdist.register_autograd(_pd_backward, setup_context=_pd_setup)


# --- soft threshold ------------------------------------------------------------
@torch.library.custom_op("blind2::soft_threshold", mutates_args=())
def soft_threshold(x: Tensor, lam: Tensor) -> Tensor:
    """sign(x) * max(|x| - lam, 0), lam per channel on the last axis."""
    return torch.sign(x) * torch.clamp(x.abs() - lam, min=0)


@soft_threshold.register_fake
def _(x, lam):
    return torch.empty_like(x)


def _st_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _st_backward(ctx, g):
    x, lam = ctx.saved_tensors
    gx = g * (x.abs() > lam)
    glam = -gx.sum_to_size(lam.shape) if ctx.needs_input_grad[1] else None
    return gx, glam


soft_threshold.register_autograd(_st_backward, setup_context=_st_setup)


# --- leaky clamp with optional bounds --------------------------------------------
@torch.library.custom_op("blind2::bounded_scale", mutates_args=())
def bounded_scale(x: Tensor, scale: Tensor, low: Optional[float] = None, high: Optional[float] = None) -> Tensor:
    y = x * scale
    if low is None and high is None:
        return y
    return torch.clamp(y, low, high)


@bounded_scale.register_fake
def _(x, scale, low=None, high=None):
    return torch.empty_like(x)


def _sc_setup(ctx, inputs, output):
    x, scale, ctx.low, ctx.high = inputs
    ctx.save_for_backward(x, scale)


def _sc_backward(ctx, g):
    x, scale = ctx.saved_tensors
    if ctx.low and ctx.high:
        y = x * scale
        g = g * ((y >= ctx.low) & (y <= ctx.high))
    return g * scale, (g * x).sum_to_size(scale.shape), None, None


bounded_scale.register_autograd(_sc_backward, setup_context=_sc_setup)


# --- product of segments ----------------------------------------------------------
@torch.library.custom_op("blind2::row_product", mutates_args=())
def row_product(x: Tensor) -> Tensor:
    return x.prod(dim=-1)


@row_product.register_fake
def _(x):
    return x.new_empty(x.shape[:-1])


def _rp_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output)


def _rp_backward(ctx, g):
    x, out = ctx.saved_tensors
    return (g * out)[..., None] / x


row_product.register_autograd(_rp_backward, setup_context=_rp_setup)


# --- residual with gain -----------------------------------------------
@torch.library.custom_op("blind2::affine_residual", mutates_args=())
def affine_residual(x: Tensor, residual: Tensor, gain: Tensor) -> Tensor:
    """residual + gain * x, gain per channel on the last axis."""
    return residual + gain * x


@affine_residual.register_fake
def _(x, residual, gain):
    return torch.empty_like(x)


def _ar_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _ar_backward(ctx, g):
    x, residual, gain = ctx.saved_tensors
    out = torch.ops.blind2.affine_residual(x, residual, gain)
    g = g.reshape(out.shape)
    gg = (g * x).flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
    return g * gain, g, gg


affine_residual.register_autograd(_ar_backward, setup_context=_ar_setup)


class CountOp(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.blind2.affine_residual.default
        return func(*args, **(kwargs or {}))


def runs_again():
    out = affine_residual(rnd(4, 8, seed=1), rnd(4, 8, seed=2), rnd(8, seed=3))
    with CountOp() as mode:
        out.sum().backward()
    return mode.count == 1


CASES = [
    case("customop_matrix_power", matrix_power, lambda: (rnd(3, 3, seed=1), 3),
         "The power rule n A^(n-1) is used as if the cotangent commuted with the matrix, in place of the sum over positions."),
    case("customop_weighted_logaddexp", weighted_logaddexp, lambda: (rnd(4, seed=2, dtype=F32), rnd(4, seed=3, dtype=F32), 0.3),
         "The responsibilities in backward leave out the mixing weight."),
    case("customop_causal_depthwise", causal_depthwise, lambda: (rnd(2, 5, seed=4), rnd(2, 3, seed=5)),
         "The input gradient is a causal convolution of the cotangent where the anticausal correlation is due."),
    case("customop_pairwise_sqdist", pairwise_sqdist, lambda: (rnd(3, 2, seed=6), rnd(4, 2, seed=7)),
         "The cross term in the gradient of the second set has the wrong sign."),
    case("customop_soft_threshold_lam", soft_threshold, lambda: (rnd(4, 3, seed=8, dtype=F32), uni(3, seed=9, hi=.6, dtype=F32)),
         "The gradient of the threshold leaves out the sign of the input."),
    case("customop_bounded_scale_one_bound", bounded_scale, lambda: (rnd(4, 3, seed=11), rnd(3, seed=12), -0.8, 0.8),
         "The bounds are tested by truth value and together, so a single bound or a bound of zero masks nothing.",
         visible=False, elsewhere=lambda: (rnd(4, 3, seed=11), rnd(3, seed=12), 0.0, 0.8), where="one bound only, or a bound of 0.0"),
    case("customop_row_product_zero", row_product, lambda: (rnd(3, 4, seed=13),),
         "The product is divided by each factor, which gives NaN at a zero.", visible=False,
         twin=lambda x: x.prod(-1), elsewhere=lambda: (ten([[1.0, 0.0, 2.0], [3.0, 1.0, 2.0]]),), where="a zero factor"),
    case("customop_affine_residual_rerun", affine_residual, lambda: (rnd(4, 3, seed=14), rnd(4, 3, seed=15), rnd(3, seed=16)),
         "Backward runs the operator again, and keeps the residual for it, only to read the shape of the result.",
         kind="wasteful", visible=False, evidence=runs_again),
]
