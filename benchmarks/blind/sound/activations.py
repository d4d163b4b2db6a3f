"""Memory-lean activations and normalised-probability mappings with exact gradients."""
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
import torch.nn.functional as F


class MemoryEfficientSwish(Function):
    """x * sigmoid(x), keeping only x for the backward (EfficientNet)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad_output * (s * (1 + x * (1 - s)))


class MishFunction(Function):
    """Mish, x * tanh(softplus(x)), recomputing the intermediates in the backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.tanh(F.softplus(x))

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        t = torch.tanh(F.softplus(x))
        return grad_output * (t + x * torch.sigmoid(x) * (1 - t * t))


class Mish(nn.Module):
    def forward(self, x):
        return MishFunction.apply(x)


class SnakeFunction(Function):
    """Snake activation x + sin^2(alpha x) / alpha with one alpha per channel.

    Args:
        x: (batch, channels, time).
        alpha: (channels,), positive.
    """

    @staticmethod
    def forward(ctx, x, alpha):
        if x.dim() != 3 or alpha.shape != (x.shape[1],):
            raise ValueError("expected x (B, C, T) and alpha (C,)")
        ctx.save_for_backward(x, alpha)
        a = alpha.view(1, -1, 1)
        return x + torch.sin(a * x).pow(2) / a

    @staticmethod
    def backward(ctx, grad_output):
        x, alpha = ctx.saved_tensors
        a = alpha.reshape(1, -1, 1)
        sin2 = torch.sin(2 * a * x)
        grad_x = grad_alpha = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output * (1 + sin2)
        if ctx.needs_input_grad[1]:
            d_alpha = x * sin2 / a - torch.sin(a * x).pow(2) / (a * a)
            grad_alpha = (grad_output * d_alpha).sum(dim=(0, 2))
        return grad_x, grad_alpha


class GatedSiLU(Function):
    """SwiGLU gating on a packed projection: split the last dim into (gate, up)."""

    @staticmethod
    def forward(ctx, packed):
        if packed.shape[-1] % 2:
            raise ValueError("last dimension must be even")
        ctx.save_for_backward(packed)
        gate, up = packed.chunk(2, dim=-1)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad_output):
        (packed,) = ctx.saved_tensors
        gate, up = packed.chunk(2, dim=-1)
        s = torch.sigmoid(gate)
        grad_gate = grad_output * up * s * (1 + gate * (1 - s))
        grad_up = grad_output * gate * s
        return torch.cat([grad_gate, grad_up], dim=-1)


def _sparsemax_threshold(z):
    """Threshold tau of the simplex projection along the last dim."""
    srt = z.sort(dim=-1, descending=True).values
    k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
    cumsum = srt.cumsum(dim=-1) - 1
    support = (k * srt > cumsum).sum(dim=-1, keepdim=True)
    return cumsum.gather(-1, support - 1) / support.to(z.dtype)


class SparsemaxFunction(Function):
    """Euclidean projection of the last dimension onto the simplex (Martins & Astudillo)."""

    @staticmethod
    def forward(ctx, z):
        p = (z - _sparsemax_threshold(z)).clamp_min(0)
        ctx.save_for_backward(p > 0)
        return p

    @staticmethod
    def backward(ctx, grad_output):
        (support,) = ctx.saved_tensors
        mask = support.to(grad_output.dtype)
        g = grad_output * mask
        mean = g.sum(dim=-1, keepdim=True) / mask.sum(dim=-1, keepdim=True)
        return g - mean * mask


def _entmax15_threshold(x):
    srt = x.sort(dim=-1, descending=True).values
    rho = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    mean = srt.cumsum(-1) / rho
    mean_sq = srt.pow(2).cumsum(-1) / rho
    ss = rho * (mean_sq - mean.pow(2))
    delta = ((1 - ss) / rho).clamp_min(0)
    tau = mean - delta.sqrt()
    support = (tau <= srt).sum(dim=-1, keepdim=True)
    return tau.gather(-1, support - 1)


class Entmax15(Function):
    """1.5-entmax over the last dimension (exact, by sorting; Peters et al., 2019)."""

    @staticmethod
    def forward(ctx, scores):
        x = (scores - scores.max(dim=-1, keepdim=True).values) / 2
        p = (x - _entmax15_threshold(x)).clamp_min(0).pow(2)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (p,) = ctx.saved_tensors
        root = p.sqrt()
        dx = grad_output * root
        q = dx.sum(dim=-1, keepdim=True) / root.sum(dim=-1, keepdim=True)
        return dx - q * root


class MaskedSoftmax(Function):
    """Softmax over the last dim restricted to ``mask``; rows without any valid entry give zeros."""

    @staticmethod
    def forward(ctx, scores, mask):
        if mask.dtype != torch.bool or mask.shape != scores.shape:
            raise ValueError("mask must be a bool tensor shaped like scores")
        filled = scores.masked_fill(~mask, float("-inf"))
        peak = filled.max(dim=-1, keepdim=True).values
        peak = torch.where(torch.isfinite(peak), peak, torch.zeros_like(peak))
        e = torch.exp(filled - peak)
        total = e.sum(dim=-1, keepdim=True)
        p = e / torch.where(total > 0, total, torch.ones_like(total))
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, grad_output):
        (p,) = ctx.saved_tensors
        weighted = grad_output * p
        return weighted - p * weighted.sum(dim=-1, keepdim=True), None


class MaxoutFunction(Function):
    """Maxout over groups of ``pieces`` consecutive features; also returns the winning piece."""

    @staticmethod
    def forward(ctx, x, pieces):
        if x.shape[-1] % pieces:
            raise ValueError("the feature dimension must be divisible by pieces")
        grouped = x.reshape(*x.shape[:-1], -1, pieces)
        values, winners = grouped.max(dim=-1)
        ctx.save_for_backward(winners)
        ctx.pieces, ctx.in_shape = pieces, x.shape
        ctx.mark_non_differentiable(winners)
        return values, winners

    @staticmethod
    def backward(ctx, grad_values, _grad_winners):
        (winners,) = ctx.saved_tensors
        zeros = grad_values.new_zeros(*winners.shape, ctx.pieces)
        grad = zeros.scatter(-1, winners.unsqueeze(-1), grad_values.unsqueeze(-1))
        return grad.reshape(ctx.in_shape), None


class InplaceLeakyReLU(Function):
    """Leaky ReLU overwriting its input; the slope sign is recovered from the output."""

    @staticmethod
    def forward(ctx, x, negative_slope):
        if negative_slope <= 0:
            raise ValueError("negative_slope must be positive to recover the sign from the output")
        ctx.negative_slope = negative_slope
        ctx.mark_dirty(x)
        x.mul_(torch.where(x > 0, torch.ones_like(x), torch.full_like(x, negative_slope)))
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return torch.where(y > 0, grad_output, grad_output * ctx.negative_slope), None


def scaled_leaky_relu(x, gain=1.5, negative_slope=0.2):
    """Scale then rectify; the scaled copy is overwritten, the caller's tensor is not."""
    return InplaceLeakyReLU.apply(x * gain, negative_slope)


class StableLogCosh(Function):
    """log(cosh(x)) without overflow: |x| + softplus(-2|x|) - log 2."""

    @staticmethod
    def forward(x):
        a = x.abs()
        return a + F.softplus(-2 * a) - 0.6931471805599453

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.tanh(x)


def _randn(*shape, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


CASES = [
    dict(name="mish", target=MishFunction, inputs=lambda: (_randn(3, 5).requires_grad_(),),
         declares={}, note="saves x only, differentiable backward"),
    dict(name="snake", target=SnakeFunction,
         inputs=lambda: (_randn(2, 3, 5).requires_grad_(), (_randn(3, seed=1).abs() + 0.5).requires_grad_()),
         declares={}, note="per-channel positive alpha, reduced over batch and time"),
    dict(name="sparsemax", target=SparsemaxFunction, inputs=lambda: (_randn(4, 6).requires_grad_(),),
         declares={}, note="piecewise linear; support mask saved, double backward right (zero in z)"),
    dict(name="entmax15", target=Entmax15, inputs=lambda: (_randn(4, 6).requires_grad_(),),
         declares={}, note="sqrt of zeros would break double backward, hence once_differentiable"),
    dict(name="masked_softmax", target=MaskedSoftmax,
         inputs=lambda: (_randn(4, 6).requires_grad_(),
                         torch.tensor([[1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 1, 0]],
                                      dtype=torch.bool)),
         declares={}, note="saves output; fully masked row gives zeros and zero gradient"),
    dict(name="inplace_leaky_relu", target=scaled_leaky_relu, inputs=lambda: (_randn(4, 8).requires_grad_(),),
         declares={}, note="mark_dirty, output saved, sign recoverable from output"),
    dict(name="stable_log_cosh", target=StableLogCosh, inputs=lambda: ((4 * _randn(5, 4)).requires_grad_(),),
         declares={}, note="setup_context, exact tanh gradient"),
]

# Verified in the same way, but beyond the hundred.
EXTRA_CASES = [
    dict(name="memory_efficient_swish", target=MemoryEfficientSwish,
         inputs=lambda: (_randn(4, 8, dtype=torch.float32).requires_grad_(),),
         declares={}, note="saves x only, differentiable backward"),
    dict(name="gated_silu", target=GatedSiLU, inputs=lambda: (_randn(2, 3, 8, dtype=torch.float32).requires_grad_(),),
         declares={}, note="packed SwiGLU"),
    dict(name="maxout", target=MaxoutFunction, inputs=lambda: (_randn(3, 8).requires_grad_(), 4),
         declares={}, note="winners marked non-differentiable"),
]
