"""Quantisers; rounding is passed straight through unless said otherwise."""
from support import *


class LSQFunction(Function):
    """Learned step size quantisation to the integers qn..qp."""

    @staticmethod
    def forward(ctx, x, step, qn, qp):
        ctx.save_for_backward(x, step)
        ctx.qn, ctx.qp = qn, qp
        return torch.clamp(torch.round(x / step), qn, qp) * step

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, step = ctx.saved_tensors
        q = x / step
        low, high = q < ctx.qn, q > ctx.qp
        inside = ~(low | high)
        gx = grad_output * inside if ctx.needs_input_grad[0] else None
        gs = None
        if ctx.needs_input_grad[1]:
            slope = torch.where(inside, torch.round(q) - q, torch.full_like(q, ctx.qp))
            gs = (grad_output * slope).sum().view_as(step)
        return gx, gs, None, None


class ClampSTE(Function):
    """Rounds and clamps to [lo, hi].  The gradient passes unchanged inside the
    range and is zero outside of it."""

    @staticmethod
    def forward(ctx, x, lo, hi):
        ctx.save_for_backward(x)
        ctx.lo, ctx.hi = lo, hi
        return torch.clamp(torch.round(x), lo, hi)

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        return grad_output * (x.abs() <= ctx.hi), None, None


class FakeQuantPerChannel(Function):
    """Fake quantisation with a learnable scale for each index of ``ch_axis``;
    both gradients are those of x with rounding passed straight through."""

    @staticmethod
    def forward(ctx, x, scale, ch_axis, qmax):
        shape = [1] * x.dim()
        shape[ch_axis] = -1
        s = scale.view(shape)
        ctx.save_for_backward(x, scale)
        ctx.ch_axis, ctx.qmax = ch_axis, qmax
        return torch.clamp(torch.round(x / s), -qmax, qmax) * s

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, scale = ctx.saved_tensors
        shape = [1] * x.dim()
        shape[ctx.ch_axis] = -1
        s = scale.view(shape)
        q = x / s
        inside = q.abs() <= ctx.qmax
        gx = grad_output * inside if ctx.needs_input_grad[0] else None
        gs = None
        if ctx.needs_input_grad[1]:
            slope = torch.where(inside, torch.round(q) - q, q.sign() * ctx.qmax)
            gs = (grad_output * slope).flatten(1).sum(1).view_as(scale)
        return gx, gs, None, None


def fake_quant_per_channel(x, scale, ch_axis=0, qmax=7):
    return FakeQuantPerChannel.apply(x, scale, ch_axis, qmax)


class VectorQuantize(Function):
    """Looks up the nearest code for every row; z receives the gradient straight through."""

    @staticmethod
    def forward(ctx, z, codebook):
        idx = torch.cdist(z, codebook).argmin(1)
        ctx.save_for_backward(idx)
        ctx.k = codebook.size(0)
        ctx.mark_non_differentiable(idx)
        return codebook[idx], idx

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output, _):
        idx, = ctx.saved_tensors
        gc_ = None
        if ctx.needs_input_grad[1]:
            gc_ = grad_output.new_zeros(ctx.k, grad_output.size(1))
            gc_[idx] += grad_output
        return grad_output, gc_


class UniformQuant(Function):
    """Uniform quantiser on a grid of width ``delta`` with straight-through gradient."""

    @staticmethod
    def forward(ctx, x, delta):
        x = x.contiguous()
        q = x.div_(delta).round_()
        return q * delta

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


def uniform_quant(x, delta=0.25):
    """Quantises without touching ``x``."""
    return UniformQuant.apply(x, delta)


def _uniform_quant_clobbers():
    leaf = tensor([0.3, 1.1])
    before = leaf.detach().clone()
    uniform_quant(leaf)
    return not torch.equal(leaf.detach(), before)


class Int8Linear(Function):
    """Linear layer whose frozen weight is held in int8 with one scale per row."""

    @staticmethod
    @amp_fwd
    def forward(ctx, x, qweight, scale, bias):
        w = qweight.to(x.dtype) * scale.to(x.dtype)[:, None]
        ctx.save_for_backward(qweight, scale, x if ctx.needs_input_grad[2] else None)
        out = x @ w.t()
        return out if bias is None else out + bias

    @staticmethod
    @once_differentiable
    @amp_bwd
    def backward(ctx, grad_output):
        qweight, scale, x = ctx.saved_tensors
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        w = qweight.to(grad_output.dtype) * scale.to(grad_output.dtype)[:, None]
        gs = gb = None
        if ctx.needs_input_grad[2]:
            gs = ((grad_output.flatten(0, -2).t() @ x.flatten(0, -2)) * qweight).sum(1)
        if ctx.needs_input_grad[3]:
            gb = grad_output.flatten(0, -2).sum(0)
        return grad_output @ w, None, gs, gb


def int8_linear(x, qweight, scale, bias=None):
    return Int8Linear.apply(x, qweight, scale, bias)


def _int8_inputs():
    q = torch.tensor([[3, -5, 7], [1, 0, -2]], dtype=torch.int8)
    return randn(4, 3), q, rand(2, seed=1, grad=False), randn(2, seed=2)


class StochasticRound(Function):
    """Stochastic rounding q of x / scale; unbiased.  x gets the straight-through
    gradient, scale the corresponding q - x / scale."""

    @staticmethod
    def forward(ctx, x, scale):
        q = torch.floor(x.detach() / scale.detach() + torch.rand_like(x))
        ctx.save_for_backward(x, scale)
        return q * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, scale = ctx.saved_tensors
        gs = None
        if ctx.needs_input_grad[1]:
            q = torch.floor(x / scale + torch.rand_like(x))
            gs = (grad_output * (q - x / scale)).sum().view_as(scale)
        return grad_output, gs


def _stochastic_scale():
    def one(noisy):
        x, s = randn(50, grad=False), tensor(0.7)
        torch.manual_seed(3)
        y = StochasticRound.apply(x, s)
        want = ((y.detach() - x) / 0.7).sum()
        if noisy:
            torch.rand(7)
        g, = torch.autograd.grad(y.sum(), s)
        return g, want
    return any(not close(*one(b)) for b in (False, True))


CASES = [
    {"name": "lsq_lower_saturation", "target": LSQFunction,
     "inputs": lambda: (randn(8, scale=2.0), tensor(0.3), -4, 3),
     "fault": "Below the range the step size gets qp, not qn, although there the output is qn * step.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(LSQFunction, (tensor([-9.0, -8.0]), tensor(0.5), -4, 3))},
    {"name": "clamp_ste_asymmetric", "target": ClampSTE, "inputs": lambda: (randn(8, scale=2.0), 0, 3),
     "fault": "The mask tests |x| <= hi, so values below lo get a gradient where the range is not symmetric.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: analytic(ClampSTE, (tensor([-1.6]), 0, 3), [torch.ones(1, dtype=f64)])[0][0].item() != 0.0},
    {"name": "fake_quant_channel_axis", "target": fake_quant_per_channel,
     "inputs": lambda: (randn(3, 4), rand(3, seed=1, lo=0.1, hi=0.5)),
     "fault": "The scale gradient always sums over all but dimension 0, silently wrong for other axes of equal size.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(fake_quant_per_channel, (tensor([[90.0, -80.0], [70.0, 60.0]]), tensor([0.5, 0.7]), 1))},
    {"name": "vq_duplicate_codes", "target": VectorQuantize,
     "inputs": lambda: (randn(3, 2), tensor([[0.0, 0.0], [9.0, 9.0]])),
     "fault": "Indexed assignment does not accumulate, so codes used by several rows lose gradient.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(VectorQuantize, (randn(3, 2), tensor([[0.0, 0.0], [9.0, 9.0]])), only=(1,), all_grad=False)},
    {"name": "uniform_quant_clobbers_input", "target": uniform_quant, "inputs": lambda: (randn(5),),
     "fault": "A contiguous input is divided in place and left changed, without mark_dirty.",
     "kind": "wrong", "visible": True, "evidence": _uniform_quant_clobbers},
    {"name": "int8_linear_bias_alone", "target": int8_linear, "inputs": _int8_inputs,
     "fault": "When x needs no gradient, backward returns early and bias and scale get none.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: subset_differs(lambda x, b: int8_linear(x, *_int8_inputs()[1:3], b), (randn(4, 3), randn(2, seed=2)), (1,))},
    {"name": "stochastic_round_redrawn", "target": StochasticRound, "inputs": lambda: (randn(6), tensor(0.5)),
     "fault": "backward draws new noise to recompute the rounded values used in the scale's gradient.",
     "kind": "wrong", "visible": True, "evidence": _stochastic_scale},
]
