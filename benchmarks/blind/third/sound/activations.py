"""Activations written as custom functions."""
import torch
import torch.nn as nn

from support import *


class SwishFunction(Function):
    """Memory-efficient swish: keeps only the input and recomputes the sigmoid in backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_output * (s * (1 + x * (1 - s)))


class Swish(nn.Module):
    def forward(self, x):
        return SwishFunction.apply(x)


class MishFunction(Function):
    """Mish with the new-style setup_context."""

    @staticmethod
    def forward(x):
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, = inputs
        ctx.save_for_backward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        t = torch.tanh(F.softplus(x))
        return grad_output * (t + x * torch.sigmoid(x) * (1 - t * t))


class GroupMax(Function):
    """Maxout over groups of ``k`` channels.  On ties the first of the equal entries takes the
    whole gradient."""

    @staticmethod
    def forward(ctx, x, k):
        n, c = x.shape
        if c % k:
            raise ValueError(f"{c} channels cannot be split in groups of {k}")
        g = x.reshape(n, c // k, k)
        top = g.amax(-1, keepdim=True)
        idx = (g == top).to(torch.uint8).argmax(-1, keepdim=True)
        ctx.k = k
        ctx.save_for_backward(idx)
        return top.squeeze(-1)

    @staticmethod
    def backward(ctx, grad_output):
        idx, = ctx.saved_tensors
        n, groups, _ = idx.shape
        grad = grad_output.new_zeros(n, groups, ctx.k).scatter(-1, idx, grad_output.unsqueeze(-1))
        return grad.reshape(n, groups * ctx.k), None


class SparsemaxFunction(Function):
    """Projection of each slice along ``dim`` onto the probability simplex."""

    @staticmethod
    def forward(ctx, x, dim=-1):
        ctx.dim = dim
        z, _ = torch.sort(x, dim=dim, descending=True)
        size = [1] * x.dim()
        size[dim] = -1
        rho = torch.arange(1, x.size(dim) + 1, device=x.device, dtype=x.dtype).view(size)
        css = z.cumsum(dim) - 1
        k = (rho * z > css).sum(dim, keepdim=True)
        tau = css.gather(dim, k - 1) / k.to(x.dtype)
        out = torch.clamp(x - tau, min=0)
        ctx.save_for_backward(out > 0)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        support, = ctx.saved_tensors
        g = grad_output * support
        mean = g.sum(ctx.dim, keepdim=True) / support.sum(ctx.dim, keepdim=True)
        return (g - mean * support), None


class Entmax15Function(Function):
    """1.5-entmax along the last dimension, exact by sorting."""

    @staticmethod
    def forward(ctx, x):
        z = (x - x.amax(-1, keepdim=True)) / 2
        zs, _ = torch.sort(z, dim=-1, descending=True)
        rho = torch.arange(1, z.size(-1) + 1, dtype=z.dtype, device=z.device)
        mean = zs.cumsum(-1) / rho
        mean_sq = (zs * zs).cumsum(-1) / rho
        ss = rho * (mean_sq - mean * mean)
        delta = torch.clamp((1 - ss) / rho, min=0)
        tau = mean - torch.sqrt(delta)
        k = (tau <= zs).sum(-1, keepdim=True)
        y = torch.clamp(z - tau.gather(-1, k - 1), min=0) ** 2
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        y, = ctx.saved_tensors
        g = y.sqrt()
        dx = dy * g
        q = dx.sum(-1, keepdim=True) / g.sum(-1, keepdim=True)
        return dx - q * g


class PReLUFunction(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.where(x > 0, x, weight.view(1, -1, *[1] * (x.dim() - 2)) * x)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_w = None
        neg = x <= 0
        if ctx.needs_input_grad[0]:
            w = weight.view(1, -1, *[1] * (x.dim() - 2))
            grad_x = torch.where(neg, w * grad_output, grad_output)
        if ctx.needs_input_grad[1]:
            dims = [d for d in range(x.dim()) if d != 1]
            grad_w = torch.where(neg, grad_output * x, torch.zeros_like(x)).sum(dims)
        return grad_x, grad_w


class SnakeFunction(Function):
    """x + sin(a x)^2 / a with one learned frequency for each channel (N, C, T)."""

    @staticmethod
    def forward(x, alpha):
        a = alpha.view(1, -1, 1)
        return x + torch.sin(a * x).square() / a

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad_output):
        x, alpha = ctx.saved_tensors
        a = alpha.view(1, -1, 1)
        s2 = torch.sin(2 * a * x)
        gx = ga = None
        if ctx.needs_input_grad[0]:
            gx = grad_output * (1 + s2)
        if ctx.needs_input_grad[1]:
            local = x * s2 / a - torch.sin(a * x).square() / (a * a)
            ga = (grad_output * local).sum((0, 2))
        return gx, ga


class InplaceELU(Function):
    """ELU that overwrites its input; the backward needs only the result."""

    @staticmethod
    def forward(ctx, x, alpha=1.0):
        if alpha <= 0:
            raise ValueError("alpha must be positive, otherwise the result does not tell the sign")
        ctx.alpha = alpha
        ctx.mark_dirty(x)
        F.elu_(x, alpha)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        y, = ctx.saved_tensors
        return torch.where(y > 0, grad_output, grad_output * (y + ctx.alpha)), None


def _elu_inputs():
    x = randn(3, 5, seed=9)
    return (x * 1.0, 0.8)


CASES = [
    case("swish_memory_efficient", Swish(), lambda: (randn(4, 6, seed=1, dtype=torch.float32),)),
    case("mish_setup_context", MishFunction, lambda: (randn(3, 4, seed=2),),
         "double backward is refused by once_differentiable"),
    case("group_max_ties", GroupMax,
         lambda: (torch.round(randn(3, 8, seed=4, grad=False) * 2).div(2).requires_grad_(), 4),
         "the example has ties, and there the first entry takes the gradient by convention"),
    case("sparsemax", SparsemaxFunction, lambda: (randn(4, 6, seed=5), -1),
         "saves only the support mask; the Jacobian depends on nothing else"),
    case("entmax15", Entmax15Function, lambda: (randn(3, 7, seed=6),),
         "exact zeros in the output and zero gradient there"),
    case("prelu_channelwise", PReLUFunction,
         lambda: (randn(2, 3, 4, seed=7), torch.full((3,), 0.25, dtype=torch.float64, requires_grad=True))),
    case("snake_activation", SnakeFunction,
         lambda: (randn(2, 3, 5, seed=8), rand(3, seed=8, low=0.5, high=1.5))),
    case("inplace_elu", InplaceELU, _elu_inputs,
         "overwrites its input and says so with mark_dirty; the input is not a leaf"),
]
