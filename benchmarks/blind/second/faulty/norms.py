"""Normalisation layers."""
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from support import *


class LayerNorm(Function):
    """Layer normalisation over the last axis with affine parameters."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        mu = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, mu, rstd)
        return (x - mu) * rstd * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        x, weight, mu, rstd = ctx.saved_tensors
        xhat = (x - mu) * rstd
        wdy = dy * weight
        c1 = (xhat * wdy).mean(-1, keepdim=True)
        c2 = wdy.mean(-1, keepdim=True)
        dx = (wdy - xhat * c1 - c2 * rstd) * rstd
        axes = tuple(range(dy.dim() - 1))
        return dx, (dy * xhat).sum(axes), dy.sum(axes), None


class RMSNorm(Function):
    """x / rms(x) * weight."""

    @staticmethod
    def forward(x, weight, eps):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, eps = inputs
        ctx.save_for_backward(x, weight)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        r = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + ctx.eps)
        xhat = x * r
        dx = r * (dy * weight - xhat * (dy * xhat).mean(-1, keepdim=True))
        dw = (dy * xhat).flatten(0, -2).sum(0)
        return dx, dw, None


class GroupNorm(Function):
    """Group normalisation of (N, C, L) without affine parameters."""

    @staticmethod
    def forward(ctx, x, groups, eps):
        n, c, l = x.shape
        xg = x.reshape(n, groups, -1)
        ctx.save_for_backward(x)
        ctx.groups, ctx.eps = groups, eps
        out = (xg - xg.mean(-1, keepdim=True)) * torch.rsqrt(xg.var(-1, unbiased=False, keepdim=True) + eps)
        return out.view(n, c, l)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        n, c, l = x.shape
        xg, g = x.reshape(n, ctx.groups, -1), dy.reshape(n, ctx.groups, -1)
        m = c // ctx.groups
        mu = xg.mean(-1, keepdim=True)
        rstd = torch.rsqrt(xg.var(-1, unbiased=False, keepdim=True) + ctx.eps)
        xhat = (xg - mu) * rstd
        dx = rstd * (g - g.sum(-1, keepdim=True) / m - xhat * (g * xhat).sum(-1, keepdim=True) / m)
        return dx.view(n, c, l), None, None


class BatchNorm(Function):
    """Batch normalisation of (N, C); running statistics are used in evaluation."""

    @staticmethod
    def forward(ctx, x, running_mean, running_var, training=True, eps=1e-5):
        mean, var = (x.mean(0), x.var(0, unbiased=False)) if training else (running_mean, running_var)
        ctx.save_for_backward(x, mean, var)
        ctx.training, ctx.eps = training, eps
        return (x - mean) * torch.rsqrt(var + eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, mean, var = ctx.saved_tensors
        rstd = torch.rsqrt(var + ctx.eps)
        xhat = (x - mean) * rstd
        dx = rstd * (g - g.mean(0) - xhat * (g * xhat).mean(0))
        return dx, None, None, None, None


class UnbiasedStandardize(Function):
    """(x - mean) / std along the batch, std with Bessel's correction."""

    @staticmethod
    def forward(ctx, x):
        mu, std = x.mean(0), x.std(0)
        y = (x - mu) / std
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        mu, std = x.mean(0), x.std(0)
        y = (x - mu) / std
        n = x.size(0)
        return (g - g.sum(0) / n - y * (g * y).sum(0) / n) / std


class AffineScaleNorm(Function):
    """gamma * xhat + beta with the normalised activations kept instead of the input."""

    @staticmethod
    def forward(ctx, x, gamma, beta, eps):
        mu = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
        xhat = (x - mu) * rstd
        ctx.save_for_backward(xhat, rstd, gamma)
        return gamma * xhat + beta

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        xhat, rstd, gamma = ctx.saved_tensors
        dgamma = (g * xhat).sum(0)
        dbeta = g.sum(0)
        gx = g * gamma
        s1 = gx.mean(-1, keepdim=True)
        s2 = (gx * xhat).mean(-1, keepdim=True)
        dx = gx.sub_(s1).sub_(xhat.data.mul_(s2)).mul_(rstd)
        return dx, dgamma, dbeta, None


class WeightNorm(Function):
    """w = g * v / |v| with one norm per output row."""

    @staticmethod
    def forward(ctx, v, g):
        norm = v.norm(dim=1, keepdim=True)
        ctx.save_for_backward(v, g)
        return g * v / norm

    @staticmethod
    @once_differentiable
    def backward(ctx, dw):
        v, g = ctx.saved_tensors
        dv = torch.zeros(v.shape, device=v.device)
        dg = torch.zeros(g.shape, device=g.device)
        for i in range(v.size(0)):
            norm = v[i].norm()
            unit = v[i] / norm
            dg[i] = (dw[i] * unit).sum()
            dv[i] = g[i] / norm * (dw[i] - unit * dg[i])
        return dv, dg


class L2Normalize(Function):
    """x / max(|x|, eps) along the last axis."""

    @staticmethod
    def forward(x, eps):
        return x / x.norm(dim=-1, keepdim=True).clamp(min=eps)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, eps = inputs
        ctx.save_for_backward(x)
        ctx.eps = eps

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        norm = x.norm(dim=-1, keepdim=True).clamp(min=ctx.eps)
        y = x / norm
        return (g - y * (g * y).sum(-1, keepdim=True) / (y * y).sum(-1, keepdim=True)) / norm, None


class SpectralScale(Function):
    """w / (u^T w v) for given singular vectors."""

    @staticmethod
    def forward(ctx, w, u, v):
        sigma = torch.dot(u, w.mv(v)).item()
        ctx.sigma = sigma
        return w / sigma

    @staticmethod
    def backward(ctx, g):
        return g / ctx.sigma, None, None


class InstanceNorm(Function):
    """Instance normalisation over the last axis of (N, C, L)."""

    cache = {}

    @staticmethod
    def forward(ctx, x, eps):
        mu = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
        xhat = (x - mu) * rstd
        InstanceNorm.cache[tuple(x.shape)] = (xhat, rstd)
        return xhat.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        xhat, rstd = InstanceNorm.cache[tuple(g.shape)]
        return rstd * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True)), None


def second_backward_differs():
    x, w, b = rnd(4, 3, seed=1), rnd(3, seed=2), rnd(3, seed=3)
    out = AffineScaleNorm.apply(x, w, b, 1e-5)
    c = rnd(4, 3, seed=4, grad=False)
    first = torch.autograd.grad(out, (x, w), c, retain_graph=True)
    return far(torch.autograd.grad(out, (x, w), c), first)


def single_precision():
    v, g = rnd(3, 4, seed=14), rnd(3, 1, seed=15)
    c = rnd(3, 4, seed=16, grad=False)
    got = torch.autograd.grad(WeightNorm.apply(v, g), v, c)[0]
    true = torch.autograd.grad(g * v / v.norm(dim=1, keepdim=True), v, c)[0]
    return 1e-10 < (got - true).abs().max().item() < 1e-5


def two_calls_mix():
    a, b = rnd(1, 2, 4, seed=1), rnd(1, 2, 4, seed=2)
    c = rnd(1, 2, 4, seed=3, grad=False)
    alone = torch.autograd.grad(InstanceNorm.apply(a, 1e-5), a, c)
    first = InstanceNorm.apply(a, 1e-5)
    InstanceNorm.apply(b, 1e-5)
    return far(torch.autograd.grad(first, a, c), alone)


CASES = [
    case("norms_layer_norm_dx", LayerNorm, lambda: (rnd(2, 3, 4, seed=1, scale=2.), rnd(4, seed=2), rnd(4, seed=3), 1e-5),
         "The mean of the weighted cotangent is multiplied by rstd once too often."),
    case("norms_rms_norm_weight", RMSNorm, lambda: (rnd(2, 3, 4, seed=4, dtype=F32), rnd(4, seed=5, dtype=F32, shift=1.), 1e-6),
         "The inner product in the input gradient leaves out the weight."),
    case("norms_group_norm_count", GroupNorm, lambda: (rnd(2, 4, 3, seed=6), 2, 1e-5),
         "The group means in backward divide by the channels per group without the spatial size."),
    case("norms_batch_norm_eval", BatchNorm,
         lambda: (rnd(5, 3, seed=7), rnd(3, seed=8, grad=False), uni(3, seed=9, lo=.5, grad=False)),
         "In evaluation mode the gradient is still that of training mode, through the batch statistics.", visible=False,
         elsewhere=lambda: (rnd(5, 3, seed=7), rnd(3, seed=8, grad=False), uni(3, seed=9, lo=.5, grad=False), False),
         where="training=False"),
    case("norms_unbiased_standardize", UnbiasedStandardize, lambda: (rnd(5, 3, seed=10),),
         "The variance term is divided by n although the standard deviation divides by n - 1."),
    case("norms_affine_saved_inplace", AffineScaleNorm,
         lambda: (rnd(4, 3, seed=11), rnd(3, seed=12), rnd(3, seed=13), 1e-5),
         "Backward multiplies the saved normalised activations in place, so a second backward over the retained graph is wrong.",
         visible=False, evidence=second_backward_differs, where="a second backward with retain_graph=True"),
    case("norms_weight_norm_buffers", WeightNorm, lambda: (rnd(3, 4, seed=14, dtype=F32), rnd(3, 1, seed=15, dtype=F32)),
         "The gradient buffers have the default dtype whatever the weight's, so gradients of float64 weights hold only single precision.",
         kind="fragile", visible=False, evidence=single_precision, where="float64 inputs"),
    case("norms_l2_normalize_clamped", L2Normalize, lambda: (rnd(3, 4, seed=16), 1e-2),
         "Rows whose norm is below eps are divided by a constant, but their gradient is still projected.", visible=False,
         elsewhere=lambda: (rnd(3, 4, seed=16, scale=1e-3), 1e-2), where="rows with a norm below eps"),
    case("norms_spectral_scale_item", SpectralScale,
         lambda: (rnd(3, 3, seed=17), rnd(3, seed=18, grad=False), rnd(3, seed=19, grad=False)),
         "sigma depends on the weight but is read with .item() and taken as a constant in backward."),
    case("norms_instance_norm_class_cache", InstanceNorm, lambda: (rnd(1, 2, 4, seed=20), 1e-5),
         "The activations for backward lie in a class dictionary keyed by shape, so a second call of the same shape overwrites those of the first.",
         kind="fragile", visible=False, evidence=two_calls_mix),
]
