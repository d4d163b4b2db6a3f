"""Normalisation layers with hand-written gradients."""
from support import *


class LayerNormFunction(Function):
    """Layer norm over the last dimension with weight and bias."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps=1e-5):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        return (x - mean) * rstd * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight, mean, rstd = ctx.saved_tensors
        xhat = (x - mean) * rstd
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            g = grad_output * weight
            gx = (g - g.mean(-1, keepdim=True)) * rstd
        if ctx.needs_input_grad[1]:
            gw = (grad_output * xhat).flatten(0, -2).sum(0)
        if ctx.needs_input_grad[2]:
            gb = grad_output.flatten(0, -2).sum(0)
        return gx, gw, gb, None


class RMSNormFunction(Function):
    """RMS norm; ``offset`` is added to the weight (0 for Llama, 1 for Gemma)."""

    @staticmethod
    def forward(ctx, x, weight, offset, eps):
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, rstd)
        ctx.offset = offset
        return x * rstd * (weight + offset)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight, rstd = ctx.saved_tensors
        xhat = x * rstd
        gx = gw = None
        if ctx.needs_input_grad[0]:
            g = grad_output * weight
            gx = rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))
        if ctx.needs_input_grad[1]:
            gw = (grad_output * xhat).flatten(0, -2).sum(0)
        return gx, gw, None, None


def rms_norm(x, weight, offset=0.0, eps=1e-6):
    return RMSNormFunction.apply(x, weight, offset, eps)


class BatchNormFunction(Function):
    """Batch norm of (N, C); uses the running statistics when not training."""

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, training, eps):
        if training:
            mean, var = x.mean(0), x.var(0, unbiased=False)
        else:
            mean, var = running_mean, running_var
        rstd = torch.rsqrt(var + eps)
        ctx.save_for_backward(x, weight, mean.clone(), rstd)
        return (x - mean) * rstd * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight, mean, rstd = ctx.saved_tensors
        xhat = (x - mean) * rstd
        gb = grad_output.sum(0)
        gw = (grad_output * xhat).sum(0)
        n = x.size(0)
        gx = weight * rstd * (grad_output - gb / n - xhat * gw / n)
        return gx, gw, gb, None, None, None, None


def batch_norm(x, weight, bias, running_mean=None, running_var=None, training=True, eps=1e-5):
    """The running statistics are lists of numbers or None."""
    if not training:
        running_mean, running_var = x.new_tensor(running_mean), x.new_tensor(running_var)
    return BatchNormFunction.apply(x, weight, bias, running_mean, running_var, training, eps)


class GroupNormFunction(Function):
    """Group norm of (N, C, *) with weight and bias per channel."""

    @staticmethod
    def forward(ctx, x, weight, bias, groups, eps=1e-5):
        n, c = x.shape[:2]
        xg = x.reshape(n, groups, -1)
        mean = xg.mean(-1, keepdim=True)
        rstd = torch.rsqrt(xg.var(-1, unbiased=False, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.groups = groups
        shape = (1, c) + (1,) * (x.dim() - 2)
        return ((xg - mean) * rstd).view(x.shape) * weight.view(shape) + bias.view(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, weight, mean, rstd = ctx.saved_tensors
        n, c = x.shape[:2]
        xhat = (x.reshape(n, ctx.groups, -1) - mean) * rstd
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            g = (grad_output * weight.view((1, c) + (1,) * (x.dim() - 2))).reshape(n, ctx.groups, -1)
            gx = rstd * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True))
            gx = gx.view(x.shape)
        if ctx.needs_input_grad[1]:
            gw = (grad_output * xhat.view(x.shape)).sum((0, 2, 3))
        if ctx.needs_input_grad[2]:
            gb = grad_output.sum((0, 2, 3))
        return gx, gw, gb, None, None


class InstanceNormFunction(Function):
    """Instance norm of (N, C, L) by the sample standard deviation, no affine part."""

    @staticmethod
    def forward(ctx, x, eps=1e-5):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, keepdim=True) + eps)
        y = (x - mean) * rstd
        ctx.save_for_backward(y, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        y, rstd = ctx.saved_tensors
        gx = grad_output - grad_output.mean(-1, keepdim=True) - y * (grad_output * y).mean(-1, keepdim=True)
        return gx * rstd, None


class WeightNormFunction(Function):
    """w = g v / |v| with one norm for each index of ``dim`` of a matrix."""

    @staticmethod
    def forward(ctx, v, g, dim=0):
        norm = v.norm(dim=1 - dim, keepdim=True)
        ctx.save_for_backward(v, g, norm)
        ctx.dim = dim
        return v / norm * (g[:, None] if dim == 0 else g)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        v, g, norm = ctx.saved_tensors
        unit = v / norm
        along = (grad_output * unit).sum(1, keepdim=True)
        gain = g[:, None] if ctx.dim == 0 else g
        return gain / norm * (grad_output - along * unit), along.view_as(g), None


def weight_norm(v, g, dim=0):
    return WeightNormFunction.apply(v, g, dim)


class SpectralNormFunction(Function):
    """Divides a matrix by u^T W v, the singular vectors being held constant."""

    @staticmethod
    def forward(ctx, weight, u, v):
        sigma = torch.dot(u, torch.mv(weight, v))
        ctx.save_for_backward(weight)
        ctx.u, ctx.v = u, v
        return weight / sigma

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        weight, = ctx.saved_tensors
        sigma = torch.dot(ctx.u, torch.mv(weight, ctx.v))
        inner = (grad_output * weight).sum() / sigma
        return (grad_output - inner * torch.outer(ctx.u, ctx.v)) / sigma, None, None


class SpectralNorm:
    """Keeps the singular vectors and refines them by power iteration in each call."""

    def __init__(self, rows, cols, iters=1, dtype=f64):
        self.u = F.normalize(torch.linspace(1, 2, rows, dtype=dtype), dim=0)
        self.v = F.normalize(torch.linspace(1, 3, cols, dtype=dtype), dim=0)
        self.iters = iters

    def __call__(self, weight):
        with torch.no_grad():
            for _ in range(self.iters):
                self.v.copy_(F.normalize(weight.t() @ self.u, dim=0))
                self.u.copy_(F.normalize(weight @ self.v, dim=0))
        return SpectralNormFunction.apply(weight, self.u, self.v)


def spectral_norm(weight, iters=200):
    """One call of a freshly initialised module, iterated to convergence."""
    return SpectralNorm(*weight.shape, iters, weight.dtype)(weight)


def _spectral_buffers():
    def one(again):
        sn, w = SpectralNorm(4, 3, 200), randn(4, 3)
        y = sn(w)
        if again:
            sn(randn(4, 3, seed=5))
        return torch.autograd.grad((y ** 2).sum(), w)[0]
    return not close(one(False), one(True))


class L2Normalize(Function):
    """x / max(|x|, eps) over the last dimension."""

    @staticmethod
    def forward(ctx, x, eps=1e-12):
        norm = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x)
        ctx.eps = eps
        return x / norm.clamp(min=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        norm = x.norm(dim=-1, keepdim=True)
        unit = x / norm
        return (grad_output - unit * (grad_output * unit).sum(-1, keepdim=True)) / norm.clamp(min=ctx.eps), None


class NormWithStats(Function):
    """Standardises the last dimension; also returns the mean and the reciprocal deviation,
    so that callers can undo the normalisation after the network."""

    @staticmethod
    def forward(ctx, x, eps=1e-5):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
        y = (x - mean) * rstd
        ctx.save_for_backward(y, rstd)
        return y, mean, rstd

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output, grad_mean, grad_rstd):
        y, rstd = ctx.saved_tensors
        n = y.size(-1)
        gx = grad_output - grad_output.mean(-1, keepdim=True) - y * (grad_output * y).mean(-1, keepdim=True)
        return gx * rstd + grad_mean / n, None


def _bn(n, c):
    return randn(n, c), rand(c, seed=1, lo=0.5, hi=1.5), randn(c, seed=2)


CASES = [
    {"name": "layer_norm_variance_term", "target": LayerNormFunction,
     "inputs": lambda: (randn(2, 3, 4), rand(4, seed=1, lo=0.5, hi=1.5), randn(4, seed=2)),
     "fault": "The term through the variance, xhat * mean(g * xhat), is missing from the input gradient.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(LayerNormFunction, (randn(2, 4), rand(4, seed=1), randn(4, seed=2)))},
    {"name": "rms_norm_offset", "target": rms_norm, "inputs": lambda: (randn(2, 3, 4), rand(4, seed=1, lo=0.5, hi=1.5)),
     "fault": "The input gradient multiplies by weight where forward used weight + offset.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(rms_norm, (randn(2, 4), rand(4, seed=1), 1.0))},
    {"name": "batch_norm_eval_mode", "target": batch_norm, "inputs": lambda: _bn(5, 3),
     "fault": "backward uses the batch-statistics formula in evaluation mode too.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(batch_norm, _bn(5, 3) + ([0.1, 0.2, 0.3], [1.0, 2.0, 0.5], False))},
    {"name": "group_norm_rank", "target": GroupNormFunction,
     "inputs": lambda: (randn(2, 4, 2, 2), rand(4, seed=1, lo=0.5, hi=1.5), randn(4, seed=2), 2),
     "fault": "The affine gradients sum over dimensions (0, 2, 3), so backward fails for other than four dimensions.",
     "kind": "fragile", "visible": False,
     "evidence": lambda: raises(lambda: analytic(GroupNormFunction, (randn(2, 4, 3), rand(4), randn(4), 2)), "dimension")},
    {"name": "instance_norm_bessel", "target": InstanceNormFunction, "inputs": lambda: (randn(2, 3, 5),),
     "fault": "forward divides the variance by n - 1, backward by n.",
     "kind": "wrong", "visible": True, "evidence": lambda: wrong_first(InstanceNormFunction, (randn(2, 3, 5),))},
    {"name": "weight_norm_square_dim", "target": weight_norm,
     "inputs": lambda: (randn(3, 4), rand(3, seed=1, lo=0.5, hi=1.5)),
     "fault": "backward sums over dimension 1 for dim = 1 too, silently wrong for square matrices.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(weight_norm, (randn(3, 3), rand(3, seed=1, lo=0.5, hi=1.5), 1))},
    {"name": "spectral_norm_live_buffers", "target": spectral_norm, "inputs": lambda: (randn(4, 3),),
     "fault": "The power-iteration buffers are kept on ctx by reference and changed in place by the next forward.",
     "kind": "wrong", "visible": False, "evidence": _spectral_buffers},
    {"name": "l2_normalize_zero_row", "target": L2Normalize, "inputs": lambda: (randn(3, 4),),
     "fault": "The unit vector is recomputed without the clamp, so a zero row has a NaN gradient.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: bool(torch.isnan(analytic(L2Normalize, (torch.zeros(1, 3, dtype=f64).requires_grad_(),))[0][0]).all())},
    {"name": "norm_with_stats_rstd_cotangent", "target": NormWithStats, "inputs": lambda: (randn(3, 4),),
     "fault": "The third output, rstd, is differentiable but its cotangent is dropped.",
     "kind": "wrong", "visible": True, "evidence": lambda: wrong_first(NormWithStats, (randn(2, 4),))},
]
