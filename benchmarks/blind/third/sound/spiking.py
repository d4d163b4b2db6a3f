"""Spiking neurons with surrogate gradients."""
import torch
import torch.nn as nn

from support import *


class FastSigmoidSpike(Function):
    """Heaviside spike; SuperSpike surrogate 1 / (1 + scale |u|)^2."""

    scale = 10.0

    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        ctx.scale = FastSigmoidSpike.scale
        return (u > 0).to(u.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        u, = ctx.saved_tensors
        return grad_output / (ctx.scale * u.abs() + 1.0) ** 2


class AtanSpike(Function):
    @staticmethod
    def forward(u, alpha):
        return torch.heaviside(u, torch.ones((), dtype=u.dtype, device=u.device))

    @staticmethod
    def setup_context(ctx, inputs, output):
        u, ctx.alpha = inputs
        ctx.save_for_backward(u)

    @staticmethod
    def backward(ctx, grad_output):
        u, = ctx.saved_tensors
        a = ctx.alpha
        return grad_output * (a / 2) / (1 + (math.pi / 2 * a * u) ** 2), None


class TriangleSpike(Function):
    """Spike above ``threshold`` with a triangular window of the given width as derivative."""

    @staticmethod
    def forward(ctx, v, threshold, width):
        ctx.save_for_backward(v)
        ctx.threshold, ctx.width = threshold, width
        return (v >= threshold).to(v.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        v, = ctx.saved_tensors
        window = torch.relu(1 - (v - ctx.threshold).abs() / ctx.width) / ctx.width
        return grad_output * window, None, None


class LIFStep(Function):
    """One step of a leaky integrate-and-fire cell: (current, v, decay) -> (spike, v_next).

    v' = decay v + current, spike = v' > 1, v_next = v' (1 - spike).  The reset path is detached,
    the spike uses the fast sigmoid."""

    @staticmethod
    def forward(ctx, current, v, decay):
        u = decay * v + current
        spike = (u > 1.0).to(u.dtype)
        ctx.save_for_backward(current, v)
        ctx.decay = decay
        ctx.set_materialize_grads(False)
        return spike, u * (1 - spike)

    @staticmethod
    def backward(ctx, g_spike, g_v):
        if g_spike is None and g_v is None:
            return None, None, None
        current, v = ctx.saved_tensors
        u = ctx.decay * v + current
        g = 0
        if g_spike is not None:
            g = g + g_spike / (1 + 5.0 * (u - 1).abs()) ** 2
        if g_v is not None:
            g = g + g_v * (u <= 1.0)
        return (g if ctx.needs_input_grad[0] else None,
                g * ctx.decay if ctx.needs_input_grad[1] else None, None)


class LIFSequence(Function):
    """Leaky integrate-and-fire over (T, B, N) currents, backward through time by hand with a
    sigmoid surrogate and detached reset.  Keeps only the currents and runs forward again."""

    @staticmethod
    def _run(x, v0, tau):
        v, us = v0, []
        for t in range(x.size(0)):
            u = v + (x[t] - v) / tau
            us.append(u)
            v = torch.where(u > 1.0, torch.zeros_like(u), u)
        return us

    @staticmethod
    def forward(ctx, x, v0, tau=2.0):
        ctx.save_for_backward(x, v0)
        ctx.tau = tau
        us = LIFSequence._run(x, v0, tau)
        return torch.stack([(u > 1.0).to(x.dtype) for u in us])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, v0 = ctx.saved_tensors
        us = LIFSequence._run(x, v0, ctx.tau)
        gx = torch.empty_like(x, memory_format=torch.contiguous_format)
        gv = torch.zeros_like(v0)
        for t in range(x.size(0) - 1, -1, -1):
            s = torch.sigmoid(4.0 * (us[t] - 1.0))
            gu = grad_output[t] * 4.0 * s * (1 - s) + gv * (us[t] <= 1.0)
            gx[t] = gu / ctx.tau
            gv = gu * (1 - 1 / ctx.tau)
        return (gx if ctx.needs_input_grad[0] else None,
                gv if ctx.needs_input_grad[1] else None, None)


def lif_sequence(x, v0=None, tau=2.0):
    """Spikes of a LIF layer; the potential starts from rest when ``v0`` is not given."""
    if v0 is None:
        v0 = torch.zeros_like(x[0])
    return LIFSequence.apply(x, v0, tau)


class PoissonEncoder(Function):
    """Draws spike trains of ``steps`` steps with the given rates in [0, 1].  The rates get the
    gradient of the expectation, summed over time."""

    @staticmethod
    def forward(ctx, rate, steps):
        if rate.min() < 0 or rate.max() > 1:
            raise ValueError("rates must be between 0 and 1")
        return (torch.rand((steps, *rate.shape), dtype=rate.dtype, device=rate.device) < rate).to(rate.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.sum(0), None


class SpikeCell(nn.Module):
    """Recurrent cell around the atan surrogate; state starts from zeros."""

    def __init__(self, n_in, n_out, seed=0):
        super().__init__()
        self.weight = nn.Parameter(randn(n_in, n_out, seed=seed, grad=False) * 0.8)
        self.decay = 0.9

    def forward(self, x):
        v = x.new_zeros(x.size(1), self.weight.size(1))
        out = []
        for t in range(x.size(0)):
            v = self.decay * v + x[t] @ self.weight.to(x.dtype)
            s = AtanSpike.apply(v - 1.0, 2.0)
            v = v - s.detach()
            out.append(s)
        return torch.stack(out)


_cell = SpikeCell(3, 4, seed=5)


CASES = [
    case("fast_sigmoid_spike", FastSigmoidSpike, lambda: (randn(3, 5, seed=1, dtype=torch.float32),),
         "step forward, smooth surrogate backward", True),
    case("atan_spike_zero_state", AtanSpike, lambda: (torch.zeros(2, 4, requires_grad=True), 2.0),
         "the first step starts exactly at the threshold", True),
    case("triangle_spike", TriangleSpike, lambda: (randn(4, 4, seed=2), 0.5, 0.8),
         "zero gradient outside the window", True),
    case("lif_step_two_outputs", LIFStep,
         lambda: (randn(2, 4, seed=4, shift=0.8), torch.zeros(2, 4, dtype=torch.float64, requires_grad=True), 0.9),
         "zero initial potential; None cotangents when an output is not used", True),
    case("lif_sequence_optional_state", lif_sequence, lambda: (randn(5, 2, 3, seed=6, shift=1.0), None, 2.0),
         "the state is optional and starts from rest; recomputes in backward", True),
    case("poisson_encoder", PoissonEncoder, lambda: (rand(3, 4, seed=7), 6),
         "random spikes; the backward is the gradient of the expectation and needs nothing saved", True),
    case("spike_cell_module", _cell, lambda: (randn(4, 2, 3, seed=8, shift=0.7),),
         "a module with a parameter of its own", True),
]
