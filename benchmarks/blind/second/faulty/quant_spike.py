"""Quantisation and spiking neurons.  Straight-through and surrogate derivatives are
defined by the plain twins (x + (q(x) - x).detach() and the like)."""
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from support import *


class LSQ(Function):
    """Learned step size quantisation (Esser et al.): round(clamp(x / s)) * s with STE."""

    @staticmethod
    def forward(ctx, x, s, qn, qp):
        ctx.save_for_backward(x, s)
        ctx.qn, ctx.qp = qn, qp
        return torch.round(torch.clamp(x / s, qn, qp)) * s

    @staticmethod
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        q = x / s
        low, high = q < ctx.qn, q > ctx.qp
        inside = ~(low | high)
        gx = g * inside
        rounded = torch.round(q)
        gs = torch.where(inside, rounded, torch.clamp(q, ctx.qn, ctx.qp))
        return gx, (g * gs).sum().reshape(s.shape), None, None


class ChannelFakeQuant(Function):
    """Per-channel affine fake quantisation; saturated entries pass no gradient."""

    @staticmethod
    def forward(ctx, w, scale, qmin, qmax):
        q = torch.round(w / scale[:, None])
        q = q.clamp_(qmin, qmax)
        mask = (q >= qmin) & (q <= qmax)
        ctx.save_for_backward(mask)
        return q * scale[:, None]

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None, None, None


class LIFStep(Function):
    """One leaky integrate-and-fire step with soft reset; the reset is part of the gradient.

    Returns the membrane potential after reset and the spikes.
    """

    @staticmethod
    def forward(ctx, v, current, decay, threshold):
        u = decay * v + current
        spike = (u >= threshold).to(u.dtype)
        ctx.save_for_backward(v, current)
        ctx.decay, ctx.threshold = decay, threshold
        return u - threshold * spike, spike

    @staticmethod
    @once_differentiable
    def backward(ctx, g_v, g_spike):
        v, current = ctx.saved_tensors
        u = ctx.decay * v + current
        surrogate = 1 / (1 + (u - ctx.threshold).abs()) ** 2
        g_u = g_v + g_spike * surrogate
        return g_u * ctx.decay, g_u, None, None


class SpikeTrace(Function):
    """Exponential trace tr_t = a * tr_{t-1} + s_t along axis 0, learnable scalar a."""

    @staticmethod
    def forward(ctx, spikes, a):
        tr, out = torch.zeros_like(spikes[0]), []
        for s in spikes:
            tr = a * tr + s
            out.append(tr)
        out = torch.stack(out)
        ctx.save_for_backward(a, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, out = ctx.saved_tensors
        acc = torch.zeros_like(g[0])
        gs, ga = torch.empty_like(g), torch.zeros_like(a)
        for t in range(g.size(0) - 1, -1, -1):
            acc = g[t] + a * acc
            gs[t] = acc
            if t > 0:
                ga = (acc * out[t - 1]).sum()
        return gs, ga


class PACT(Function):
    """Activation clipping to [0, alpha] with learnable alpha (before quantisation)."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x, alpha)
        return torch.minimum(x.clamp(min=0), alpha)

    @staticmethod
    def backward(ctx, g):
        x, alpha = ctx.saved_tensors
        above = x >= alpha
        gx = g * ((x > 0) & ~above)
        ga = g[above].mean().reshape(alpha.shape) if above.any() else torch.zeros_like(alpha)
        return gx, ga


class SigmoidSpike(Function):
    """Heaviside step, derivative of sigmoid(alpha * x) in backward."""

    @staticmethod
    def forward(x, alpha=1.0):
        return (x >= 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, alpha = inputs
        ctx.save_for_backward(x)
        ctx.alpha = alpha

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.alpha * x)
        return g * s * (1 - s), None


class SeededDither(Function):
    """Additive uniform dither scaled by a learnable step; the noise is drawn again in backward."""

    @staticmethod
    def _noise(x, seed):
        torch.manual_seed(seed)
        return torch.rand(x.shape, device=x.device, dtype=torch.float64).to(x.dtype) - 0.5

    @staticmethod
    def forward(ctx, x, step, seed):
        ctx.save_for_backward(x)
        ctx.seed = seed
        return x + step * SeededDither._noise(x, seed)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gs = (g * SeededDither._noise(x, ctx.seed)).sum() if ctx.needs_input_grad[1] else None
        return g, gs, None


def lsq_twin(x, s, qn, qp):
    q = torch.clamp(x / s, qn, qp)
    return (q + (torch.round(q) - q).detach()) * s


def channel_twin(w, scale, qmin, qmax):
    q = w / scale[:, None]
    q = (q + (torch.round(q) - q).detach()).clamp(qmin, qmax)
    return q * scale[:, None]


def lif_twin(v, current, decay, threshold):
    u = decay * v + current
    d = u - threshold
    hard = (u >= threshold).to(u.dtype)
    soft = d / (1 + d.abs())
    spike = soft + (hard - soft).detach()
    return u - threshold * spike, spike


def spike_twin(x, alpha=1.0):
    s = torch.sigmoid(alpha * x)
    return s + ((x >= 0).to(x.dtype) - s).detach()


def reseeds_globally():
    torch.manual_seed(123)
    expected = torch.rand(3)
    torch.manual_seed(123)
    SeededDither.apply(rnd(4), ten(0.3), 5).sum().backward()
    return not torch.equal(torch.rand(3), expected)


CASES = [
    case("quant_lsq_step", LSQ, lambda: (rnd(4, 3, seed=1, dtype=F32), ten(0.4, F32), -2, 2),
         "Inside the range the step gradient is round(x/s) without subtracting x/s.", twin=lsq_twin),
    case("quant_channel_saturation", ChannelFakeQuant,
         lambda: (rnd(2, 6, seed=2, dtype=F32), ten([0.2, 0.3], F32, False), -3, 3),
         "The saturation mask is computed after the in-place clamp and so is true everywhere.", twin=channel_twin),
    case("spike_lif_soft_reset", LIFStep, lambda: (rnd(6, seed=3), rnd(6, seed=4, shift=0.5), 0.8, 1.0),
         "The gradient through the spike of the soft reset, -threshold times the surrogate, is missing.", twin=lif_twin),
    case("spike_trace_decay", SpikeTrace, lambda: (uni(5, 2, seed=5), ten(0.7)),
         "The decay gradient is assigned at every step where it should be accumulated, so only the last one assigned remains."),
    case("quant_pact_alpha_mean", PACT, lambda: (rnd(8, seed=6, scale=2.), ten(1.0)),
         "The gradient of alpha averages over the clipped entries where it should sum."),
    case("spike_sigmoid_alpha", SigmoidSpike, lambda: (rnd(6, seed=7),),
         "The slope alpha is left out of the chain rule, so only the default alpha of one is right.", visible=False,
         twin=spike_twin, elsewhere=lambda: (rnd(6, seed=7), 4.0), where="alpha other than 1"),
    case("quant_seeded_dither_global_rng", SeededDither, lambda: (rnd(4, seed=8), ten(0.3), 5),
         "Forward and backward reseed the global generator, so every later random draw of the program repeats.",
         kind="fragile", visible=False, evidence=reseeds_globally),
]
