"""Spiking neurons with surrogate gradients, and exact filters around them."""
import math
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, integers, real_floating, same_shape


class ATanSpike(Function):
    """Heaviside step with the arctangent surrogate (SpikingJelly)."""

    @staticmethod
    def forward(ctx, v, alpha=2.0):
        real_floating("ATanSpike", v)
        if alpha <= 0:
            raise ValueError("ATanSpike: alpha must be positive")
        ctx.save_for_backward(v)
        ctx.alpha = alpha
        return (v >= 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad_out):
        v, = ctx.saved_tensors
        return grad_out * (ctx.alpha / 2) / (1 + (math.pi / 2 * ctx.alpha * v).square()), None


class SuperSpike(Function):
    """Heaviside step with the fast-sigmoid surrogate of Zenke and Ganguli."""

    scale = 10.0

    @staticmethod
    def forward(ctx, v):
        real_floating("SuperSpike", v)
        ctx.save_for_backward(v)
        return torch.where(v > 0, 1.0, 0.0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad_out):
        v, = ctx.saved_tensors
        return grad_out / (SuperSpike.scale * v.abs() + 1).square()


class TriangleSpike(Function):
    """Spike of a membrane above a threshold, pseudo-derivative gamma * max(0, 1 - |v/th - 1|) / th (Bellec et al.)."""

    @staticmethod
    def forward(ctx, v, threshold=1.0, gamma=0.3):
        real_floating("TriangleSpike", v)
        if threshold <= 0:
            raise ValueError("TriangleSpike: threshold must be positive")
        ctx.save_for_backward(v)
        ctx.threshold, ctx.gamma = threshold, gamma
        return (v > threshold).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        v, = ctx.saved_tensors
        window = (1 - (v / ctx.threshold - 1).abs()).clamp_min(0)
        return grad_out * window * (ctx.gamma / ctx.threshold), None, None


class WindowSpike(Function):
    """Spike with the rectangular surrogate of width 2 w; the window is kept as a boolean mask."""

    @staticmethod
    def forward(ctx, v, w=0.5):
        real_floating("WindowSpike", v)
        if w <= 0:
            raise ValueError("WindowSpike: w must be positive")
        ctx.save_for_backward(v.abs() < w)
        ctx.w = w
        return (v >= 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad_out):
        mask, = ctx.saved_tensors
        return grad_out * mask / (2 * ctx.w), None


class MultiGaussianSpike(Function):
    """Spike with a centre Gaussian minus two side lobes as pseudo-derivative (Yin et al. 2021)."""

    @staticmethod
    def forward(ctx, v, width=0.5):
        real_floating("MultiGaussianSpike", v)
        if width <= 0:
            raise ValueError("MultiGaussianSpike: width must be positive")
        ctx.save_for_backward(v)
        ctx.width = width
        return (v > 0).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        v, = ctx.saved_tensors

        def bell(mu, sigma):
            return torch.exp(-((v - mu) / sigma).square() / 2) / (sigma * math.sqrt(2 * math.pi))
        s = ctx.width
        return grad_out * (1.3 * bell(0, s) - 0.15 * bell(s, 6 * s) - 0.15 * bell(-s, 6 * s)), None


class LIFLayer(Function):
    """Leaky integrate-and-fire over (T, N) from a zero state, hard reset (detached), sigmoid surrogate."""

    @staticmethod
    def forward(ctx, current, decay=0.9, threshold=1.0, slope=4.0):
        real_floating("LIFLayer", current)
        if current.dim() < 1 or not 0 <= decay <= 1:
            raise ValueError("LIFLayer: a time axis and a decay in [0, 1] expected")
        state = current.new_zeros(current.shape[1:])
        trace = torch.empty_like(current)
        for t in range(current.shape[0]):
            state = decay * state + current[t]
            trace[t] = state
            state = state * (state < threshold)
        ctx.save_for_backward(trace)
        ctx.consts = decay, threshold, slope
        return (trace >= threshold).to(current.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        trace, = ctx.saved_tensors
        decay, threshold, slope = ctx.consts
        s = torch.sigmoid(slope * (trace - threshold))
        local = grad_out * slope * s * (1 - s)
        grad = torch.empty_like(trace)
        carry = torch.zeros_like(trace[0]) if trace.shape[0] else None
        for t in reversed(range(trace.shape[0])):
            g = local[t] + carry * (trace[t] < threshold)
            grad[t] = g
            carry = decay * g
        return grad, None, None, None


class SoftResetLIF(Function):
    """LIF over (T, N) with a learnable decay, an initial state or None for zeros, and reset by subtraction.

    Returns the spikes and the last membrane; spikes use a triangular surrogate, the reset is not differentiated."""

    @staticmethod
    def forward(ctx, current, decay, state=None):
        real_floating("SoftResetLIF", current, decay, state)
        if current.dim() != 2 or current.shape[0] == 0 or decay.shape != current.shape[1:]:
            raise ValueError("SoftResetLIF: current (T > 0, N) and decay (N,) expected")
        if state is not None:
            same_shape("SoftResetLIF", state, decay)
        u = torch.zeros_like(decay) if state is None else state
        trace = torch.empty_like(current)
        for t in range(current.shape[0]):
            trace[t] = v = decay * u + current[t]
            u = v - (v >= 1).to(v.dtype)
        ctx.save_for_backward(trace, decay, state)
        return (trace >= 1).to(current.dtype), u

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_spikes, grad_last):
        trace, decay, state = ctx.saved_tensors
        local = grad_spikes * (1 - (trace - 1).abs()).clamp_min(0)
        grad, gd, carry = torch.empty_like(trace), torch.zeros_like(decay), grad_last
        for t in reversed(range(trace.shape[0])):
            grad[t] = g = local[t] + carry
            before = trace[t - 1] - (trace[t - 1] >= 1).to(g.dtype) if t else state
            if before is not None:
                gd = gd + g * before
            carry = decay * g
        return grad, gd, carry if state is not None else None


class PoissonEncoder(Function):
    """Spike trains (T, *) from rates in [0, 1]; the seed is an argument, the gradient is the expected one."""

    @staticmethod
    def forward(ctx, rates, steps, seed=0):
        real_floating("PoissonEncoder", rates)
        if steps < 1 or bool(((rates < 0) | (rates > 1)).any()):
            raise ValueError("PoissonEncoder: rates in [0, 1] and at least one step expected")
        gen = torch.Generator(device=rates.device).manual_seed(seed)
        draw = torch.rand((steps, *rates.shape), generator=gen, dtype=torch.float64, device=rates.device)
        return (draw < rates).to(rates.dtype)

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out.sum(0), None, None


class SynapticTrace(Function):
    """Exact exponential trace y_t = decay y_{t-1} + spikes_t of (T, N) spikes from zero; spikes may be integers."""

    @staticmethod
    def forward(ctx, spikes, decay):
        real_floating("SynapticTrace", decay)
        if spikes.is_complex() or (spikes.is_floating_point() and spikes.dtype != decay.dtype):
            raise TypeError("SynapticTrace: spikes are integers, booleans or of the decay's dtype")
        if spikes.dim() != 2 or decay.shape != spikes.shape[1:]:
            raise ValueError("SynapticTrace: spikes (T, N) and decay (N,) expected")
        y = torch.zeros_like(decay)
        out = torch.empty(spikes.shape, dtype=decay.dtype, device=decay.device)
        for t in range(spikes.shape[0]):
            out[t] = y = decay * y + spikes[t]
        ctx.save_for_backward(out, decay)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        out, decay = ctx.saved_tensors
        gs, gd, carry = torch.empty_like(out), torch.zeros_like(decay), torch.zeros_like(decay)
        for t in reversed(range(out.shape[0])):
            gs[t] = g = grad_out[t] + decay * carry
            if t:
                gd = gd + g * out[t - 1]
            carry = g
        return gs if ctx.needs_input_grad[0] else None, gd


def hat(v, smooth):
    """A step whose gradient is that of `smooth`."""
    return v * 0 + smooth(v)


def lif_reference(current, decay=0.9, threshold=1.0, slope=4.0):
    u, out = torch.zeros_like(current[0]), []
    for row in current:
        v = decay * u + row
        out.append(torch.sigmoid(slope * (v - threshold)))
        u = v * (v < threshold)
    return torch.stack(out)


def triangle_integral(v):
    z = (v - 1).clamp(-1, 1)
    return torch.where(z < 0, (1 + z).square() / 2, 1 - (1 - z).square() / 2)


def soft_reference(current, decay, state=None):
    u, out = torch.zeros_like(decay) if state is None else state, []
    for row in current:
        v = decay * u + row
        out.append(triangle_integral(v))
        u = v - (v >= 1).to(v.dtype)
    return torch.stack(out), u


def bumps(v, s=0.5):
    def cdf(mu, sigma):
        return torch.special.ndtr((v - mu) / sigma)
    return 1.3 * cdf(0, s) - 0.15 * cdf(s, 6 * s) - 0.15 * cdf(-s, 6 * s)


CASES = [
    case("atan_spike", ATanSpike, lambda: (rand(3, 4, dtype=torch.float32), 2.0), "Arctangent surrogate, declared.", declares={"surrogate": ["v"]},
         ref=lambda v, a: torch.atan(math.pi / 2 * a * v) / math.pi),
    case("super_spike", SuperSpike, lambda: (rand(3, 4),), "Fast-sigmoid surrogate with a class constant, not declared.", ref=lambda v: v / (1 + 10 * v.abs())),
    case("triangle_spike", TriangleSpike, lambda: (rand(3, 4), 1.0, 0.5), "Triangular pseudo-derivative, not declared.", second="refused",
         ref=lambda v, th, ga: ga * triangle_integral(v)),
    case("window_spike", WindowSpike, lambda: (rand(3, 4), 0.5), "Rectangular surrogate kept as a mask, declared.", declares={"surrogate": ["v"]},
         ref=lambda v, w: v.clamp(-w, w) / (2 * w)),
    case("multi_gaussian_spike", MultiGaussianSpike, lambda: (rand(2, 3), 0.5), "Surrogate with negative side lobes, not declared.", second="refused", ref=bumps),
    case("lif_layer", LIFLayer, lambda: (uniform(5, 3, high=1.2), 0.8), "Backpropagation through time with a surrogate, declared.", declares={"surrogate": ["current"]},
         second="refused", ref=lif_reference, loose16=True, more=[lambda: (uniform(1, 2),)]),
    case("soft_reset_lif", SoftResetLIF, lambda: (uniform(5, 3, high=1.2), uniform(3, seed=1), rand(3, seed=2)),
         "Two outputs and an optional state; the surrogate reaches every input and is not declared.", second="refused", ref=soft_reference, loose16=True,
         more=[lambda: (uniform(4, 2, high=1.5), uniform(2, seed=4))]),
    case("poisson_encoder", PoissonEncoder, lambda: (uniform(2, 3), 4, 5), "Random spikes whose gradient is the expected one, declared.", declares={"surrogate": ["rates"]},
         ref=lambda r, t, s: r.expand(t, *r.shape) * 1, refuses=[lambda: (rand(3, shift=2), 2)]),
    case("synaptic_trace", SynapticTrace, lambda: (integers(0, 2, 5, 3), uniform(3)), "Integer spikes through an exact filter with learnable decay.", second="refused",
         more=[lambda: (rand(4, 2), uniform(2)), lambda: (rand(1, 2), uniform(2)), lambda: (rand(0, 2), uniform(2))]),
]
