"""Quantisation-aware training primitives (fake quantisation, binarisation, VQ, entropy-model bounds)."""
import math

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class RoundSTE(Function):
    """Round to the nearest integer; the gradient passes straight through."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class FakeQuantizePerTensor(Function):
    """Uniform affine fake quantisation with a fixed scale and zero point.

    The gradient is passed where the unclamped integer code lies in
    ``[quant_min, quant_max]`` and is zero elsewhere.
    """

    @staticmethod
    def forward(ctx, x, scale, zero_point, quant_min, quant_max):
        if scale <= 0:
            raise ValueError("scale must be positive")
        if not quant_min <= zero_point <= quant_max:
            raise ValueError("zero_point must lie between quant_min and quant_max")
        q = torch.round(x / scale) + zero_point
        in_range = (q >= quant_min) & (q <= quant_max)
        ctx.save_for_backward(in_range)
        return (q.clamp(quant_min, quant_max) - zero_point) * scale

    @staticmethod
    def backward(ctx, grad_output):
        (in_range,) = ctx.saved_tensors
        return grad_output * in_range, None, None, None, None


class FakeQuantize(nn.Module):
    def __init__(self, scale, zero_point=0, bits=8):
        super().__init__()
        self.scale, self.zero_point = float(scale), int(zero_point)
        self.quant_min, self.quant_max = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def forward(self, x):
        return FakeQuantizePerTensor.apply(x, self.scale, self.zero_point, self.quant_min, self.quant_max)


class LearnedStepSize(Function):
    """LSQ quantiser (Esser et al., 2020): a step size learned with its own surrogate gradient.

    Args:
        x: tensor to quantise.
        scale: 0-dim positive step size.
        q_neg, q_pos: integer code range ``[-q_neg, q_pos]``.
    """

    @staticmethod
    def forward(ctx, x, scale, q_neg, q_pos):
        if scale.dim() != 0:
            raise ValueError("scale must be a 0-dim tensor")
        ctx.save_for_backward(x, scale)
        ctx.q_neg, ctx.q_pos = q_neg, q_pos
        return torch.round(x / scale).clamp(-q_neg, q_pos) * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, scale = ctx.saved_tensors
        grad_x = grad_scale = None
        v = x / scale
        below, above = v <= -ctx.q_neg, v >= ctx.q_pos
        inside = ~(below | above)
        if ctx.needs_input_grad[0]:
            grad_x = grad_output * inside
        if ctx.needs_input_grad[1]:
            g = 1.0 / math.sqrt(max(1, x.numel() * ctx.q_pos))
            per_elem = torch.where(inside, torch.round(v) - v, torch.zeros_like(v))
            per_elem = per_elem - ctx.q_neg * below.to(v.dtype) + ctx.q_pos * above.to(v.dtype)
            grad_scale = (grad_output * per_elem).sum() * g
        return grad_x, grad_scale, None, None


class BinarizeHardTanh(Function):
    """sign(x) in {-1, +1}; the backward is that of hardtanh (BinaryNet, Courbariaux et al.)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x.abs() <= 1).to(grad_output.dtype)


class BinaryLinear(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-1, 1))

    def forward(self, x):
        return nn.functional.linear(x, BinarizeHardTanh.apply(self.weight))


class TernarizeWeights(Function):
    """Ternary weight networks: w -> alpha * {-1, 0, 1} per output channel, straight through."""

    @staticmethod
    def forward(ctx, weight, delta_ratio=0.7):
        if weight.dim() < 2:
            raise ValueError("weight must have an output-channel dimension")
        flat = weight.reshape(weight.shape[0], -1)
        absw = flat.abs()
        delta = delta_ratio * absw.mean(dim=1, keepdim=True)
        mask = (absw > delta).to(weight.dtype)
        alpha = (absw * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp_min(1)
        return (alpha * torch.sign(flat) * mask).reshape(weight.shape)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


class StochasticRound(Function):
    """Unbiased stochastic rounding onto a grid of spacing ``step``; straight-through gradient."""

    @staticmethod
    def forward(ctx, x, step=1.0):
        if step <= 0:
            raise ValueError("step must be positive")
        scaled = x / step
        low = torch.floor(scaled)
        up = (torch.rand_like(scaled) < (scaled - low)).to(x.dtype)
        return (low + up) * step

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


class LowerBound(Function):
    """max(x, bound), whose gradient also passes below the bound when it would raise x.

    As in learned image compression (Balle et al.): a parameter that has fallen
    under the bound can still be moved back by gradient descent.
    """

    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x)
        ctx.bound = float(bound)
        return x.clamp_min(ctx.bound)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        pass_through = (x >= ctx.bound) | (grad_output < 0)
        return grad_output * pass_through.to(grad_output.dtype), None


class NonNegativeParametrizer(nn.Module):
    """Square reparametrisation with a lower bound, for GDN parameters."""

    def __init__(self, minimum=0.0, offset=2 ** -18):
        super().__init__()
        self.pedestal = offset ** 2
        self.bound = (minimum + self.pedestal) ** 0.5

    def forward(self, x):
        return LowerBound.apply(x, self.bound) ** 2 - self.pedestal


class PACTClip(Function):
    """PACT clipping y = clamp(x, 0, alpha) with a learned clipping level of shape (1,)."""

    @staticmethod
    def forward(ctx, x, alpha):
        if alpha.numel() != 1:
            raise ValueError("alpha must hold a single element")
        ctx.save_for_backward(x, alpha)
        return torch.minimum(x.clamp_min(0), alpha.reshape(()))

    @staticmethod
    def backward(ctx, grad_output):
        x, alpha = ctx.saved_tensors
        level = alpha.reshape(())
        grad_x = grad_alpha = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output * ((x > 0) & (x < level)).to(grad_output.dtype)
        if ctx.needs_input_grad[1]:
            grad_alpha = (grad_output * (x >= level).to(grad_output.dtype)).sum().reshape(alpha.shape)
        return grad_x, grad_alpha


class PowerOfTwoQuantize(Function):
    """Quantise magnitudes to powers of two in [2**min_exp, 2**max_exp], zero kept; straight through."""

    @staticmethod
    def forward(x, min_exp, max_exp):
        mag = x.abs()
        tiny = torch.finfo(x.dtype).tiny
        exponent = torch.round(torch.log2(mag.clamp_min(tiny))).clamp(min_exp, max_exp)
        q = torch.sign(x) * torch.exp2(exponent)
        return torch.where(mag < 2.0 ** (min_exp - 1), torch.zeros_like(q), q)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None, None


class VectorQuantizeST(Function):
    """Nearest-codeword quantisation (VQ-VAE).

    Returns the quantised vectors and the (non-differentiable) code indices. The
    gradient with respect to ``latents`` is straight through; the one with respect
    to ``codebook`` is the true gradient of the lookup.
    """

    @staticmethod
    def forward(ctx, latents, codebook):
        if latents.dim() != 2 or latents.shape[1] != codebook.shape[1]:
            raise ValueError("latents must be (N, D) and codebook (K, D)")
        dist = (
            latents.pow(2).sum(1, keepdim=True)
            - 2 * latents @ codebook.t()
            + codebook.pow(2).sum(1)
        )
        indices = dist.argmin(dim=1)
        ctx.save_for_backward(indices)
        ctx.num_codes = codebook.shape[0]
        ctx.mark_non_differentiable(indices)
        return codebook.index_select(0, indices), indices

    @staticmethod
    def backward(ctx, grad_codes, _grad_indices):
        (indices,) = ctx.saved_tensors
        grad_latents = grad_codebook = None
        if ctx.needs_input_grad[0]:
            grad_latents = grad_codes
        if ctx.needs_input_grad[1]:
            zeros = grad_codes.new_zeros(ctx.num_codes, grad_codes.shape[1])
            grad_codebook = zeros.index_add(0, indices, grad_codes)
        return grad_latents, grad_codebook


def _randn(*shape, seed=0, dtype=torch.float32):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


CASES = [
    dict(name="fake_quantize_per_tensor", target=FakeQuantizePerTensor,
         inputs=lambda: (_randn(4, 8).requires_grad_(), 0.1, 2, -8, 7),
         declares={"surrogate": "x"}, note="fake quant STE with range mask; mask is a bool, backward linear"),
    dict(name="learned_step_size", target=LearnedStepSize,
         inputs=lambda: (_randn(6, 5).requires_grad_(), torch.tensor(0.3, requires_grad=True), 4, 3),
         declares={"surrogate": ("x", "scale")}, note="LSQ; both gradients are the paper's surrogates, once_differentiable"),
    dict(name="binarize_hardtanh", target=BinarizeHardTanh,
         inputs=lambda: (_randn(5, 7).requires_grad_(),),
         declares={"surrogate": "x"}, note="sign with hardtanh backward"),
    dict(name="stochastic_round", target=StochasticRound,
         inputs=lambda: (_randn(4, 8).requires_grad_(), 0.25),
         declares={"surrogate": "x"}, note="random forward, straight-through backward, nothing saved"),
    dict(name="lower_bound", target=LowerBound,
         inputs=lambda: (_randn(4, 6).requires_grad_(), 0.2),
         declares={"surrogate": "x"}, note="CompressAI-style bound; gate depends on sign of grad, so once_differentiable"),
    dict(name="pact_clip", target=PACTClip,
         inputs=lambda: ((2 * _randn(4, 6, dtype=torch.float64)).requires_grad_(),
                         torch.tensor([1.5], dtype=torch.float64, requires_grad=True)),
         declares={}, note="exact gradient of the clip (a.e.), alpha summed; double backward right"),
    dict(name="power_of_two_quantize", target=PowerOfTwoQuantize,
         inputs=lambda: (_randn(3, 9).requires_grad_(), -4, 1),
         declares={"surrogate": "x"}, note="setup_context style, straight through"),
    dict(name="vector_quantize_st", target=VectorQuantizeST,
         inputs=lambda: (_randn(7, 4).requires_grad_(), _randn(5, 4, seed=1).requires_grad_()),
         declares={"surrogate": "latents"}, note="VQ-VAE; indices marked non-differentiable; codebook gradient exact"),
]

# Verified in the same way, but beyond the hundred.
EXTRA_CASES = [
    dict(name="round_ste", target=RoundSTE,
         inputs=lambda: ((3 * _randn(4, 8)).requires_grad_(),),
         declares={"surrogate": "x"}, note="straight-through rounding; identity backward by design"),
    dict(name="ternarize_weights", target=TernarizeWeights,
         inputs=lambda: (_randn(4, 3, 3, 3).requires_grad_(), 0.7),
         declares={"surrogate": "weight"}, note="TWN with identity backward"),
]
