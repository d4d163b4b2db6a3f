"""Normalisation layers."""
import torch
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, real_floating, full_precision


class LayerNormFn(Function):
    """Layer norm over the last axis with optional weight and bias; keeps mean and rstd, not the normalised input."""

    @staticmethod
    def forward(ctx, x, weight=None, bias=None, eps=1e-5):
        real_floating("LayerNormFn", x, weight, bias)
        if x.dim() == 0 or x.shape[-1] == 0 or eps <= 0:
            raise ValueError("LayerNormFn: a non-empty last axis and eps > 0 expected")
        for p in (weight, bias):
            if p is not None and p.shape != x.shape[-1:]:
                raise ValueError("LayerNormFn: weight and bias must match the last axis")
        mean = x.mean(-1, keepdim=True)
        rstd = (x.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
        out = (x - mean) * rstd
        if weight is not None:
            out = out * weight
        if bias is not None:
            out = out + bias
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.has_bias = bias is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        x, weight, mean, rstd = ctx.saved_tensors
        norm = (x - mean) * rstd
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            g = grad_out if weight is None else grad_out * weight
            gx = rstd * (g - g.mean(-1, keepdim=True) - norm * (g * norm).mean(-1, keepdim=True))
        if weight is not None and ctx.needs_input_grad[1]:
            gw = (grad_out * norm).sum_to_size(weight.shape)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            gb = grad_out.sum_to_size(x.shape[-1:])
        return gx, gw, gb, None


class RMSNorm(Function):
    """x / rms(x) * (offset + weight), Llama (offset 0) and Gemma (offset 1) styles; differentiable twice."""

    @staticmethod
    def forward(ctx, x, weight, eps=1e-6, offset=0.0):
        real_floating("RMSNorm", x, weight)
        if weight.dim() != 1 or x.shape[-1:] != weight.shape or not x.shape[-1] or not eps > 0:
            raise ValueError("RMSNorm: weight must match a non-empty last axis, eps must be positive")
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.offset = eps, offset
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (offset + weight)

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        rstd = (x.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
        gx = gw = None
        if ctx.needs_input_grad[0]:
            g = grad_out * (ctx.offset + weight)
            gx = rstd * (g - x * rstd.square() * (g * x).mean(-1, keepdim=True))
        if ctx.needs_input_grad[1]:
            gw = (grad_out * x * rstd).sum_to_size(weight.shape)
        return gx, gw, None, None


class GroupNormFn(Function):
    """Group norm of (N, C, *space) without affine; the normalised output itself is what backward needs."""

    @staticmethod
    def forward(ctx, x, groups, eps=1e-5):
        real_floating("GroupNormFn", x)
        if x.dim() < 2 or groups < 1 or x.shape[1] % groups or x[:1].numel() == 0 or not eps > 0:
            raise ValueError("GroupNormFn: non-empty (N, C, *) with C a multiple of groups and eps > 0 expected")
        v = x.reshape(x.shape[0], groups, -1)
        rstd = (v.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
        out = ((v - v.mean(-1, keepdim=True)) * rstd).reshape(x.shape)
        ctx.save_for_backward(out, rstd)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        out, rstd = ctx.saved_tensors
        y = out.reshape(*rstd.shape[:2], -1)
        g = grad_out.reshape(y.shape)
        g = rstd * (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True))
        return g.reshape(grad_out.shape), None, None


class SafeNormalize(Function):
    """x / max(||x||, eps) along dim, as F.normalize: below eps the division is by a constant."""

    @staticmethod
    def forward(ctx, x, dim=-1, eps=1e-6):
        real_floating("SafeNormalize", x)
        if eps <= 0:
            raise ValueError("SafeNormalize: eps must be positive")
        norm = x.square().sum(dim, keepdim=True).sqrt()
        ctx.save_for_backward(x)
        ctx.dim, ctx.eps = dim, eps
        return x / norm.clamp_min(eps)

    @staticmethod
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        sq = x.square().sum(ctx.dim, keepdim=True)
        big = sq.sqrt() >= ctx.eps
        safe = torch.where(big, sq, torch.ones_like(sq))
        inv = torch.where(big, safe.rsqrt(), torch.full_like(sq, 1 / ctx.eps))
        along = (grad_out * x).sum(ctx.dim, keepdim=True) * big / safe
        return (grad_out - x * along) * inv, None, None


class WeightNormFn(Function):
    """w = g v / ||v|| with one norm per row of v (all axes but the first)."""

    @staticmethod
    def forward(ctx, v, g):
        real_floating("WeightNormFn", v, g)
        if v.dim() < 2 or g.shape != v.shape[:1] or bool((v.flatten(1).abs().amax(1) == 0).any()):
            raise ValueError("WeightNormFn: v (O, ...) with no zero row and g (O,) expected")
        ctx.save_for_backward(v, g)
        flat = v.flatten(1)
        return (flat * (g / flat.norm(dim=1))[:, None]).reshape(v.shape)

    @staticmethod
    def backward(ctx, grad_w):
        v, g = ctx.saved_tensors
        flat, gw = v.flatten(1), grad_w.flatten(1)
        norm = flat.norm(dim=1, keepdim=True)
        unit = flat / norm
        along = (gw * unit).sum(1, keepdim=True)
        gv = ((gw - unit * along) * g[:, None] / norm).reshape(v.shape) if ctx.needs_input_grad[0] else None
        return gv, along[:, 0] if ctx.needs_input_grad[1] else None


class SpectralScale(Function):
    """w / (u^T w v) with u, v the (unit, constant) power-iteration vectors, as in spectral normalisation."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, w, u, v):
        real_floating("SpectralScale", w, u, v)
        if w.dim() != 2 or u.shape != w.shape[:1] or v.shape != w.shape[1:]:
            raise ValueError("SpectralScale: w (M, N), u (M,), v (N,) expected")
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            raise ValueError("SpectralScale: u and v are constants here, detach them")
        sigma = u @ w @ v
        if float(sigma) == 0:
            raise ValueError("SpectralScale: u^T w v is zero")
        out = w / sigma
        ctx.save_for_backward(out, sigma, u, v)
        return out

    @staticmethod
    @once_differentiable
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad_out):
        out, sigma, u, v = ctx.saved_tensors
        return (grad_out - (grad_out * out).sum() * torch.outer(u, v)) / sigma, None, None


class TrainBatchNorm(Function):
    """Batch norm of (N, C) in training mode; updates running_mean and running_var in place (marked dirty).

    Returns (out, running_mean, running_var); the running statistics carry no gradient."""

    @staticmethod
    def forward(ctx, x, running_mean, running_var, momentum=0.1, eps=1e-5):
        real_floating("TrainBatchNorm", x, running_mean, running_var)
        if x.dim() != 2 or x.shape[0] < 2 or running_mean.shape != x.shape[1:] or running_var.shape != x.shape[1:]:
            raise ValueError("TrainBatchNorm: (N > 1, C) and statistics of shape (C,) expected")
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            raise ValueError("TrainBatchNorm: running statistics must not require grad")
        mean, var = x.mean(0), x.var(0, unbiased=False)
        n = x.shape[0]
        running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        running_var.mul_(1 - momentum).add_(var, alpha=momentum * n / (n - 1))
        ctx.mark_dirty(running_mean, running_var)
        ctx.mark_non_differentiable(running_mean, running_var)
        rstd = (var + eps).rsqrt()
        out = (x - mean) * rstd
        ctx.save_for_backward(out, rstd)
        return out, running_mean, running_var

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out, _mean, _var):
        out, rstd = ctx.saved_tensors
        g = rstd * (grad_out - grad_out.mean(0) - out * (grad_out * out).mean(0))
        return g, None, None, None, None


class CosineRows(Function):
    """Cosine similarity of matching rows, with norms floored at eps (the floor passes no gradient through the norm)."""

    @staticmethod
    def forward(ctx, a, b, eps=1e-8):
        real_floating("CosineRows", a, b)
        if a.shape != b.shape or a.dim() == 0 or eps <= 0:
            raise ValueError("CosineRows: two tensors of one shape with a last axis and eps > 0 expected")
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        na = a.square().sum(-1).sqrt().clamp_min(eps)
        nb = b.square().sum(-1).sqrt().clamp_min(eps)
        return (a * b).sum(-1) / (na * nb)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        ra = a.square().sum(-1, keepdim=True).sqrt()
        rb = b.square().sum(-1, keepdim=True).sqrt()
        na, nb = ra.clamp_min(ctx.eps), rb.clamp_min(ctx.eps)
        ua, ub = a / na, b / nb
        cos = (ua * ub).sum(-1, keepdim=True)
        g = grad_out[..., None]
        ga = g * (ub - ua * cos * (ra >= ctx.eps)) / na if ctx.needs_input_grad[0] else None
        gb = g * (ua - ub * cos * (rb >= ctx.eps)) / nb if ctx.needs_input_grad[1] else None
        return ga, gb, None


def unit(n, seed):
    u = rand(n, seed=seed, grad=False)
    return u / u.norm()


def power_vectors(m, n):
    w = rand(m, n, seed=3, grad=False)
    u, s, vt = torch.linalg.svd(w)
    return w.requires_grad_(), u[:, 0].contiguous(), vt[0].contiguous()


def with_small_row(*shape):
    x = rand(*shape, grad=False)
    x[0] = 1e-3
    return x.requires_grad_()


def batchnorm_output(x, running_mean, running_var):
    """Layer-like call: works on its own copy of the statistics and returns the three results."""
    return TrainBatchNorm.apply(x, running_mean.clone(), running_var.clone(), 0.2)


CASES = [
    case("layer_norm_fn", LayerNormFn, lambda: (rand(2, 3, 5), uniform(5, seed=1), rand(5, seed=2)),
         "Layer norm with optional affine parameters; second order refused.", second="refused",
         more=[lambda: (rand(2, 4),), lambda: (rand(4), None, rand(4, seed=1), 1e-3), lambda: (rand(0, 3), uniform(3)), lambda: (rand(3, 1), uniform(1))]),
    case("rms_norm", RMSNorm, lambda: (rand(2, 3, 4), rand(4, seed=1), 1e-6, 1.0), "RMS norm with the weight offset of Gemma.",
         more=[lambda: (rand(4), rand(4, seed=2)), lambda: (rand(0, 2), rand(2))]),
    case("group_norm_fn", GroupNormFn, lambda: (rand(2, 4, 3), 2), "Saves its output and the inverse deviation only.", second="refused",
         more=[lambda: (rand(2, 3, 2, 2), 3), lambda: (rand(1, 4), 1)], refuses=[lambda: (rand(2, 3), 2)]),
    case("safe_normalize", SafeNormalize, lambda: (with_small_row(3, 4), -1, 0.01),
         "One row lies below eps, where the norm is the constant eps.",
         more=[lambda: (torch.zeros(2, 2, dtype=torch.float64, requires_grad=True), -1, 0.5), lambda: (rand(3, 4), 0)]),
    case("weight_norm_fn", WeightNormFn, lambda: (rand(3, 2, 2), uniform(3, seed=1)), "Direction and length of each row; zero rows are refused.",
         more=[lambda: (rand(1, 1), uniform(1))], refuses=[lambda: (torch.zeros(2, 2), uniform(2))]),
    case("spectral_scale", SpectralScale, lambda: power_vectors(3, 4), "u and v are the leading singular vectors of w, kept constant.",
         second="refused", more=[lambda: (rand(2, 2), unit(2, 1), unit(2, 2))], loose16=True),
    case("train_batch_norm", batchnorm_output, lambda: (rand(4, 3), rand(3, seed=1, grad=False), uniform(3, seed=2, grad=False)),
         "Running statistics are updated in place and marked dirty.", second="refused"),
    case("cosine_rows", CosineRows, lambda: (rand(3, 4), rand(3, 4, seed=1)), "Cosine of matching rows with a floor under the norms.",
         second="refused", more=[lambda: (rand(4), rand(4, seed=2), 0.1), lambda: (rand(0, 2), rand(0, 2))]),
]
