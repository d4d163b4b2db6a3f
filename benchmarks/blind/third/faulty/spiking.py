"""Spiking neurons with surrogate gradients."""
from support import *


class ATan(Function):
    """Heaviside step; backward is the derivative of ``primitive``."""

    @staticmethod
    def primitive(x, alpha):
        return torch.atan(math.pi / 2 * alpha * x) / math.pi + 0.5

    @staticmethod
    def forward(ctx, x, alpha=2.0):
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        return grad_output / (1 + (math.pi / 2 * ctx.alpha * x).square()), None


def _atan_primitive():
    def off(alpha):
        a, b = randn(5), randn(5)
        g, = torch.autograd.grad(ATan.apply(a, alpha).sum(), a)
        h, = torch.autograd.grad(ATan.primitive(b, alpha).sum(), b)
        return not close(g, h)
    return off(3.0) and not off(2.0)


class FastSigmoidFunction(Function):
    """Heaviside step with gradient 1 / (scale |x| + 1)^2 (SuperSpike)."""

    scale = 25.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        return grad_output / (FastSigmoidFunction.scale * x.abs() + 1.0) ** 2


def fast_sigmoid(x, scale=25.0):
    """Spike function with surrogate slope ``scale``."""
    FastSigmoidFunction.scale = scale
    return FastSigmoidFunction.apply(x)


def _fast_sigmoid_shared():
    x = randn(4)
    alone, = torch.autograd.grad(fast_sigmoid(x, 5.0).sum(), x)
    y = fast_sigmoid(x, 5.0)
    fast_sigmoid(x, 50.0)
    mixed, = torch.autograd.grad(y.sum(), x)
    return not close(alone, mixed)


def _triangle(u, width=1.0):
    return (1 - u.abs() / width).clamp(min=0) / width


class LIFStep(Function):
    """One step of a leaky integrate-and-fire neuron with soft reset.

    v' = decay v + x;  s = v' >= threshold;  v_next = v' - threshold s.
    The spike has a triangular surrogate; the reset is not differentiated."""

    @staticmethod
    def forward(ctx, x, v, decay, threshold):
        u = decay * v + x
        s = (u >= threshold).to(u.dtype)
        ctx.save_for_backward(u)
        ctx.decay, ctx.threshold = decay, threshold
        return s, u - threshold * s

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_s, grad_v):
        u, = ctx.saved_tensors
        g = grad_s * _triangle(u - ctx.threshold) + grad_v
        return g, g, None, None


def lif_step(x, v, decay=0.9, threshold=1.0):
    return LIFStep.apply(x, v, decay, threshold)


class HardResetIF(Function):
    """Integrate-and-fire step; v returns to zero after a spike.  The reset gate is
    treated as a constant, the spike has a triangular surrogate."""

    @staticmethod
    def forward(ctx, x, v):
        u = v + x
        s = (u >= 1.0).to(u.dtype)
        ctx.save_for_backward(u)
        return s, u * (1 - s)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_s, grad_v):
        u, = ctx.saved_tensors
        g = grad_s * _triangle(u - 1.0)
        return g, g


class RectangularSpike(Function):
    """Heaviside step whose gradient is one within half a unit of the threshold."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x >= 0).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        grad_input = grad_output
        grad_input[x.abs() > 0.5] = 0
        return grad_input


def _rectangular_spoils():
    x = tensor([-2.0, 0.1, 3.0])
    c = torch.ones(3, dtype=f64)
    torch.autograd.grad(RectangularSpike.apply(x), x, c)
    return not torch.equal(c, torch.ones(3, dtype=f64))


class MultiStepPLIF(Function):
    """Parametric LIF over a sequence (T, N): u_t = u_{t-1} sigmoid(w) + x_t, a spike where
    u_t >= 1, no reset.  Backpropagates through time with a triangular surrogate."""

    @staticmethod
    def forward(ctx, x, w):
        k = torch.sigmoid(w)
        u, us = torch.zeros_like(x[0]), []
        for t in range(x.size(0)):
            u = u * k + x[t]
            us.append(u)
        us = torch.stack(us)
        ctx.save_for_backward(us, w)
        return (us >= 1).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        us, w = ctx.saved_tensors
        k = torch.sigmoid(w)
        gx = torch.empty_like(us)
        gk = torch.zeros_like(w)
        carry = torch.zeros_like(us[0])
        for t in range(us.size(0) - 1, -1, -1):
            carry = grad_output[t] * _triangle(us[t] - 1) + carry * k
            gx[t] = carry
            if t > 0:
                gk = (carry * us[t - 1]).sum().view_as(w)
        return gx, gk * k * (1 - k)


class _RefSpike(Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u >= 1).to(u.dtype)

    @staticmethod
    def backward(ctx, g):
        return g * _triangle(ctx.saved_tensors[0] - 1)


def _ref_plif(x, w):
    u, out = torch.zeros_like(x[0]), []
    for t in range(x.size(0)):
        u = u * torch.sigmoid(w) + x[t]
        out.append(_RefSpike.apply(u))
    return torch.stack(out)


def _plif_evidence():
    long = (randn(5, 3, scale=0.5, shift=0.4), tensor(0.3))
    short = (randn(2, 3, scale=0.5, shift=0.4), tensor(0.3))
    return differs_from(MultiStepPLIF, _ref_plif, long) and not differs_from(MultiStepPLIF, _ref_plif, short)


CASES = [
    {"name": "atan_surrogate_alpha", "target": ATan, "inputs": lambda: (randn(6),),
     "fault": "The factor alpha / 2 is missing; the surrogate is the derivative of its primitive for alpha = 2 only.",
     "kind": "wrong", "visible": True, "evidence": _atan_primitive},
    {"name": "fast_sigmoid_shared_scale", "target": fast_sigmoid, "inputs": lambda: (randn(6),),
     "fault": "The slope is kept on the class, so a later call with another scale changes the backward of an earlier one.",
     "kind": "fragile", "visible": True, "evidence": _fast_sigmoid_shared},
    {"name": "lif_step_membrane_decay", "target": lif_step,
     "inputs": lambda: (randn(5, scale=0.3), randn(5, seed=1, scale=0.3)),
     "fault": "The gradient of the previous membrane potential lacks the factor decay.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(lif_step, (tensor([-3.0, -4.0]), tensor([0.1, 0.2])))},
    {"name": "hard_reset_membrane_cotangent", "target": HardResetIF,
     "inputs": lambda: (randn(5, scale=0.3), randn(5, seed=1, scale=0.3)),
     "fault": "The cotangent of the membrane output is ignored.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(HardResetIF, (tensor([-3.0, -4.0]), tensor([0.1, 0.2])))},
    {"name": "rectangular_spike_cotangent_inplace", "target": RectangularSpike, "inputs": lambda: (randn(6),),
     "fault": "backward zeroes entries of grad_output in place, spoiling the gradient other consumers receive.",
     "kind": "wrong", "visible": True, "evidence": _rectangular_spoils},
    {"name": "plif_tau_overwritten", "target": MultiStepPLIF,
     "inputs": lambda: (randn(5, 3, scale=0.5, shift=0.4), tensor(0.3)),
     "fault": "The decay parameter's gradient is overwritten at each time step, not accumulated.",
     "kind": "wrong", "visible": True, "evidence": _plif_evidence},
]
