"""Spiking-neuron surrogates, domain adaptation and other deliberate gradient modifications."""
import math

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class GradientReversal(Function):
    """Identity forward, ``-lambd * grad`` backward (Ganin & Lempitsky, 2015)."""

    @staticmethod
    def forward(ctx, x, lambd):
        ctx.lambd = float(lambd)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.lambd, None


class DomainClassifier(nn.Module):
    def __init__(self, features, hidden=64, lambd=1.0):
        super().__init__()
        self.lambd = lambd
        self.net = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(GradientReversal.apply(x, self.lambd))


class FastSigmoidSpike(Function):
    """Heaviside spike with the SuperSpike surrogate 1 / (1 + slope * |u|)^2."""

    slope = 25.0

    @staticmethod
    def forward(ctx, membrane):
        ctx.save_for_backward(membrane)
        return (membrane > 0).to(membrane.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (membrane,) = ctx.saved_tensors
        return grad_output / (FastSigmoidSpike.slope * membrane.abs() + 1.0) ** 2


class ATanSpike(Function):
    """Heaviside spike, arctangent surrogate: alpha / 2 / (1 + (pi/2 * alpha * u)^2)."""

    @staticmethod
    def forward(ctx, membrane, alpha=2.0):
        if alpha <= 0:
            raise ValueError("alpha must be positive")
        ctx.save_for_backward(membrane)
        ctx.alpha = alpha
        return (membrane >= 0).to(membrane.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (membrane,) = ctx.saved_tensors
        a = ctx.alpha
        return grad_output * (a / 2) / (1 + (math.pi / 2 * a * membrane).pow(2)), None


class ErfSpike(Function):
    """Heaviside spike with a Gaussian surrogate density of width ``sigma``."""

    @staticmethod
    def forward(membrane, sigma):
        return (membrane >= 0).to(membrane.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        membrane, sigma = inputs
        ctx.save_for_backward(membrane)
        ctx.sigma = sigma

    @staticmethod
    def backward(ctx, grad_output):
        (membrane,) = ctx.saved_tensors
        z = membrane / ctx.sigma
        density = torch.exp(-0.5 * z * z) / (ctx.sigma * math.sqrt(2 * math.pi))
        return grad_output * density, None


class LIFStep(Function):
    """One step of a leaky integrate-and-fire neuron with detached hard reset.

    ``h = v + (x - v) / tau``, ``s = [h >= v_th]``, ``v' = h * (1 - s)``.
    The spike uses a triangular surrogate ``max(0, 1 - |h - v_th|)`` and the
    reset factor ``1 - s`` is treated as a constant.

    Returns:
        spikes and the next membrane potential, both shaped like ``x``.
    """

    @staticmethod
    def forward(ctx, x, v, tau, v_threshold):
        if x.shape != v.shape:
            raise ValueError("x and v must have the same shape")
        h = v + (x - v) / tau
        spike = (h >= v_threshold).to(x.dtype)
        ctx.save_for_backward(h)
        ctx.tau, ctx.v_threshold = tau, v_threshold
        return spike, h * (1 - spike)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_spike, grad_v):
        (h,) = ctx.saved_tensors
        u = h - ctx.v_threshold
        surrogate = (1 - u.abs()).clamp_min(0)
        keep = (u < 0).to(h.dtype)
        grad_h = grad_spike * surrogate + grad_v * keep
        grad_x = grad_h / ctx.tau if ctx.needs_input_grad[0] else None
        grad_v_in = grad_h * (1 - 1 / ctx.tau) if ctx.needs_input_grad[1] else None
        return grad_x, grad_v_in, None, None


def lif_sequence(current, tau=2.0, v_threshold=1.0):
    """Run a LIF neuron over time (dim 0) from a resting state of zeros."""
    v = torch.zeros_like(current[0])
    spikes = []
    for x in current.unbind(0):
        s, v = LIFStep.apply(x, v, tau, v_threshold)
        spikes.append(s)
    return torch.stack(spikes)


class ClampGradient(Function):
    """Identity forward; the gradient is clamped elementwise to [-limit, limit]."""

    @staticmethod
    def forward(ctx, x, limit):
        if limit <= 0:
            raise ValueError("limit must be positive")
        ctx.limit = float(limit)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clamp(-ctx.limit, ctx.limit), None


class ScaleGradient(Function):
    """Identity forward; gradient multiplied by a constant (wav2vec's GradMultiply)."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.scale, None


class HardArgmaxST(Function):
    """One-hot argmax over the last dimension with the softmax gradient."""

    @staticmethod
    def forward(ctx, logits, temperature):
        if temperature <= 0:
            raise ValueError("temperature must be positive")
        ctx.save_for_backward(logits)
        ctx.temperature = temperature
        index = logits.argmax(dim=-1, keepdim=True)
        return torch.zeros_like(logits).scatter_(-1, index, 1.0)

    @staticmethod
    def backward(ctx, grad_output):
        (logits,) = ctx.saved_tensors
        p = torch.softmax(logits / ctx.temperature, dim=-1)
        inner = (grad_output * p).sum(dim=-1, keepdim=True)
        return p * (grad_output - inner) / ctx.temperature, None


class BernoulliST(Function):
    """Sample Bernoulli(probs) with a straight-through gradient to the probabilities."""

    @staticmethod
    def forward(ctx, probs):
        if bool(((probs < 0) | (probs > 1)).any()):
            raise ValueError("probs must lie in [0, 1]")
        return torch.bernoulli(probs)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class TopKMask(Function):
    """Edge-popup subnetwork mask: 1 for the k largest scores, straight-through gradient."""

    @staticmethod
    def forward(ctx, scores, keep_ratio):
        if not 0 < keep_ratio <= 1:
            raise ValueError("keep_ratio must be in (0, 1]")
        k = max(1, int(round(keep_ratio * scores.numel())))
        flat = scores.reshape(-1)
        mask = torch.zeros_like(flat)
        mask[flat.topk(k).indices] = 1
        return mask.reshape(scores.shape)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


class SupermaskLinear(nn.Module):
    def __init__(self, in_features, out_features, keep_ratio=0.5):
        super().__init__()
        self.keep_ratio = keep_ratio
        self.register_buffer("weight", torch.randn(out_features, in_features) / math.sqrt(in_features))
        self.scores = nn.Parameter(torch.rand(out_features, in_features))

    def forward(self, x):
        return nn.functional.linear(x, self.weight * TopKMask.apply(self.scores, self.keep_ratio))


def _randn(*shape, seed=0, dtype=torch.float32):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


CASES = [
    dict(name="gradient_reversal", target=GradientReversal,
         inputs=lambda: (_randn(4, 8).requires_grad_(), 0.5),
         declares={"surrogate": "x"}, note="DANN reversal; view_as returned so input is not aliased as output"),
    dict(name="fast_sigmoid_spike", target=FastSigmoidSpike,
         inputs=lambda: (_randn(5, 10).requires_grad_(),),
         declares={"surrogate": "membrane"}, note="SuperSpike; backward differentiable in membrane"),
    dict(name="lif_step", target=LIFStep,
         inputs=lambda: ((1 + _randn(4, 6)).requires_grad_(), _randn(4, 6, seed=1).requires_grad_(), 2.0, 1.0),
         declares={"surrogate": ("x", "v")}, note="two outputs, detached reset, intermediate saved so once_differentiable"),
    dict(name="clamp_gradient", target=ClampGradient,
         inputs=lambda: (_randn(4, 8).requires_grad_(), 0.3),
         declares={"surrogate": "x"}, note="deliberate gradient clipping"),
    dict(name="hard_argmax_st", target=HardArgmaxST,
         inputs=lambda: (_randn(4, 5).requires_grad_(), 0.7),
         declares={"surrogate": "logits"}, note="one-hot forward, softmax backward"),
    dict(name="bernoulli_st", target=BernoulliST,
         inputs=lambda: (torch.sigmoid(_randn(4, 8)).requires_grad_(),),
         declares={"surrogate": "probs"}, note="random forward, straight-through"),
]

# Verified in the same way, but beyond the hundred.
EXTRA_CASES = [
    dict(name="atan_spike", target=ATanSpike,
         inputs=lambda: (_randn(5, 6).requires_grad_(), 2.0),
         declares={"surrogate": "membrane"}, note="spikingjelly arctan surrogate"),
    dict(name="erf_spike", target=ErfSpike,
         inputs=lambda: (_randn(3, 7).requires_grad_(), 0.5),
         declares={"surrogate": "membrane"}, note="setup_context Gaussian surrogate"),
    dict(name="scale_gradient", target=ScaleGradient,
         inputs=lambda: (_randn(4, 8).requires_grad_(), 0.1),
         declares={"surrogate": "x"}, note="GradMultiply"),
    dict(name="topk_mask", target=TopKMask,
         inputs=lambda: (_randn(6, 5).abs().requires_grad_(), 0.4),
         declares={"surrogate": "scores"}, note="edge-popup mask"),
]
