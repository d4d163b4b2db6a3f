"""Quantisers and binarisers with straight-through estimators."""
import enum

import torch
import torch.nn as nn

from support import *


class RoundSTE(Function):
    """round() forward, identity backward."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class BinarizeSTE(Function):
    """Sign with the hard-tanh estimator: the gradient passes where |x| <= 1.  sign(0) is +1."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        return grad_output * (x.abs() <= 1)


class LSQFunction(Function):
    """Learned step size quantisation.  x gets the clipped straight-through gradient, the step
    gets LSQ's estimate scaled by ``g``."""

    @staticmethod
    def forward(ctx, x, step, g, qn, qp):
        if float(step) <= 0:
            raise ValueError("the step size must be positive")
        ctx.save_for_backward(x, step)
        ctx.other = g, qn, qp
        return torch.clamp(torch.round(x / step), qn, qp) * step

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, step = ctx.saved_tensors
        g, qn, qp = ctx.other
        q = x / step
        inside = (q >= qn) & (q <= qp)
        gx = gs = None
        if ctx.needs_input_grad[0]:
            gx = grad_output * inside
        if ctx.needs_input_grad[1]:
            local = torch.where(inside, torch.round(q) - q, q.clamp(qn, qp))
            gs = ((local * grad_output).sum() * g).reshape(step.shape)
        return gx, gs, None, None, None


class PACTFunction(Function):
    """Clip to [0, alpha] and quantise to k bits; alpha gets the gradient of the clipped part."""

    @staticmethod
    def forward(ctx, x, alpha, k):
        ctx.save_for_backward(x, alpha)
        levels = 2 ** k - 1
        y = torch.minimum(torch.relu(x), alpha)
        return torch.round(y * (levels / alpha)) * (alpha / levels)

    @staticmethod
    def backward(ctx, grad_output):
        x, alpha = ctx.saved_tensors
        gx = ga = None
        if ctx.needs_input_grad[0]:
            gx = grad_output * ((x >= 0) & (x < alpha))
        if ctx.needs_input_grad[1]:
            ga = (grad_output * (x >= alpha)).sum().reshape(alpha.shape)
        return gx, ga, None


class RoundingMode(enum.Enum):
    NEAREST = "nearest"
    FLOOR = "floor"
    STOCHASTIC = "stochastic"


class _FakeQuant(Function):
    @staticmethod
    def forward(ctx, x, scale, zero_point, qmin, qmax, mode):
        q = x / scale + zero_point
        if mode is RoundingMode.NEAREST:
            q = torch.round(q)
        elif mode is RoundingMode.FLOOR:
            q = torch.floor(q)
        else:
            q = torch.floor(q + torch.rand_like(q))
        ctx.save_for_backward((q >= qmin) & (q <= qmax))
        return (q.clamp(qmin, qmax) - zero_point) * scale

    @staticmethod
    def backward(ctx, grad_output):
        mask, = ctx.saved_tensors
        return grad_output * mask, None, None, None, None, None


def fake_quantize(x, scale, zero_point=0, bits=8, symmetric=True, mode="nearest"):
    """Fake quantisation of ``x`` with a fixed scale; gradients pass inside the clipping range."""
    mode = RoundingMode(mode)
    if symmetric:
        qmin, qmax = -2 ** (bits - 1), 2 ** (bits - 1) - 1
    else:
        qmin, qmax = 0, 2 ** bits - 1
    return _FakeQuant.apply(x, float(scale), int(zero_point), qmin, qmax, mode)


class VectorQuantizeSTE(Function):
    """Nearest codebook row.  The code gradient passes straight to the input, the codebook gets
    the gradient of the rows it was looked up in.  The indices are not differentiable."""

    @staticmethod
    def forward(ctx, z, codebook):
        dist = z.square().sum(-1, keepdim=True) - 2 * z @ codebook.t() + codebook.square().sum(1)
        idx = dist.argmin(-1)
        ctx.save_for_backward(idx)
        ctx.codebook_shape = codebook.shape
        ctx.mark_non_differentiable(idx)
        return codebook[idx], idx

    @staticmethod
    def backward(ctx, grad_q, grad_idx):
        idx, = ctx.saved_tensors
        gz = grad_q if ctx.needs_input_grad[0] else None
        gc = None
        if ctx.needs_input_grad[1]:
            gc = grad_q.new_zeros(ctx.codebook_shape).index_add(
                0, idx.reshape(-1), grad_q.reshape(-1, grad_q.size(-1)))
        return gz, gc


@torch.library.custom_op("tinyquant::pow2_quantize", mutates_args=())
def pow2_quantize(x: torch.Tensor, min_exp: int, max_exp: int) -> torch.Tensor:
    """Round to a signed power of two; zero stays zero."""
    tiny = torch.finfo(x.dtype).tiny
    e = torch.log2(x.abs().clamp_min(tiny)).round().clamp(min_exp, max_exp)
    return (torch.sign(x) * torch.exp2(e)).contiguous()


@pow2_quantize.register_fake
def _(x, min_exp, max_exp):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


pow2_quantize.register_autograd(lambda ctx, grad: (grad, None, None))


class TruncExp(Function):
    """exp with the exponent clamped in backward only, so that density heads do not blow up."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype != torch.float32:
            raise TypeError(f"trunc_exp works in float32, got {x.dtype}")
        ctx.save_for_backward(x)
        return torch.exp(x)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * torch.exp(x.clamp(-15, 15))


CASES = [
    case("round_ste", RoundSTE, lambda: (randn(4, 5, seed=1, scale=3.0),), "identity surrogate", True),
    case("binarize_hardtanh_ste", BinarizeSTE, lambda: (randn(4, 5, seed=2),),
         "gradient only where |x| <= 1", True),
    case("lsq_step_size", LSQFunction,
         lambda: (randn(4, 6, seed=4, dtype=torch.float32),
                  torch.tensor([0.3], requires_grad=True), 1 / math.sqrt(24 * 7), -8, 7),
         "the step gets the estimate of the LSQ paper, scaled by a constant", True),
    case("pact_clip_quantize", PACTFunction,
         lambda: (randn(4, 6, seed=5), torch.tensor(1.2, dtype=torch.float64, requires_grad=True), 4),
         "clipped straight-through for x, the clipped part for alpha", True),
    case("fake_quantize_modes", fake_quantize,
         lambda: (randn(3, 7, seed=6, dtype=torch.float32), 0.1, 3, 4, False, "stochastic"),
         "stochastic rounding draws in forward, the saved mask fixes the backward", True),
    case("vector_quantize_ste", VectorQuantizeSTE,
         lambda: (randn(2, 3, 4, seed=7), randn(5, 4, seed=8)),
         "straight-through to the input; unused codes get zero; indices marked non-differentiable", True),
    case("pow2_quantize_custom_op", pow2_quantize, lambda: (randn(4, 4, seed=9), -4, 2),
         "identity surrogate, nothing to set up", True),
    case("trunc_exp_float32", TruncExp,
         lambda: (torch.tensor([-20.0, -3.0, 0.0, 1.5, 4.0, 16.0], requires_grad=True),),
         "gradient deliberately cut off beyond +-15; float32 only by a clear error", True),
]
