"""Invertible and memory-saving layers, recurrent cells, normalising flows."""
import math

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class ReversibleTanhBlock(Function):
    """RevNet block on (x1, x2): y1 = x1 + tanh(x2 Wf), y2 = x2 + tanh(y1 Wg).

    Activations are not stored: the backward reconstructs the inputs from the outputs.
    """

    @staticmethod
    def forward(ctx, x1, x2, wf, wg):
        if x1.shape != x2.shape:
            raise ValueError("both streams must have the same shape")
        y1 = x1 + torch.tanh(x2 @ wf)
        y2 = x2 + torch.tanh(y1 @ wg)
        ctx.save_for_backward(y1, y2, wf, wg)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, g1, g2):
        y1, y2, wf, wg = ctx.saved_tensors
        tg = torch.tanh(y1 @ wg)
        x2 = y2 - tg
        dg = g2 * (1 - tg * tg)
        gy1 = g1 + dg @ wg.mT
        tf = torch.tanh(x2 @ wf)
        df = gy1 * (1 - tf * tf)
        gx2 = g2 + df @ wf.mT
        d = x2.shape[-1]
        grad_wf = x2.reshape(-1, d).mT @ df.reshape(-1, df.shape[-1]) if ctx.needs_input_grad[2] else None
        grad_wg = y1.reshape(-1, d).mT @ dg.reshape(-1, dg.shape[-1]) if ctx.needs_input_grad[3] else None
        return gy1, gx2, grad_wf, grad_wg


class RecomputeMLP(Function):
    """Two-layer perceptron relu(x W1 + b1) W2 keeping no hidden activation.

    ``b1`` may be None. The hidden layer is recomputed with autograd in the backward.
    """

    @staticmethod
    def _run(x, w1, b1, w2):
        h = x @ w1
        if b1 is not None:
            h = h + b1
        return torch.relu(h) @ w2

    @staticmethod
    def forward(ctx, x, w1, b1, w2):
        ctx.save_for_backward(x, w1, b1, w2)
        return RecomputeMLP._run(x, w1, b1, w2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        saved = ctx.saved_tensors
        leaves = [None if t is None else t.detach().requires_grad_(need)
                  for t, need in zip(saved, ctx.needs_input_grad)]
        with torch.enable_grad():
            out = RecomputeMLP._run(*leaves)
        wanted = [t for t in leaves if t is not None and t.requires_grad]
        grads = iter(torch.autograd.grad(out, wanted, grad_output))
        return tuple(next(grads) if t is not None and t.requires_grad else None for t in leaves)


class InvertibleLinear(Function):
    """Glow-style 1x1 convolution: y = x W^T over channels, with log|det W| as second output."""

    @staticmethod
    def forward(ctx, x, weight):
        if weight.shape != (x.shape[1], x.shape[1]):
            raise ValueError("weight must be (C, C)")
        ctx.save_for_backward(x, weight)
        return torch.einsum("oc,bct->bot", weight, x), torch.linalg.slogdet(weight).logabsdet

    @staticmethod
    def backward(ctx, grad_y, grad_logdet):
        x, weight = ctx.saved_tensors
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.einsum("oc,bot->bct", weight, grad_y)
        if ctx.needs_input_grad[1]:
            grad_w = torch.einsum("bot,bct->oc", grad_y, x) + grad_logdet * torch.linalg.inv(weight).mT
        return grad_x, grad_w


class AffineCoupling(Function):
    """RealNVP affine coupling y = x * exp(log_s) + t with per-sample log-determinant.

    Setup-context style; gradients come from the inputs only.
    """

    @staticmethod
    def forward(x, log_s, t):
        if not (x.shape == log_s.shape == t.shape):
            raise ValueError("x, log_s and t must have the same shape")
        return x * log_s.exp() + t, log_s.flatten(1).sum(1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, log_s, _ = inputs
        ctx.save_for_backward(x, log_s)

    @staticmethod
    def backward(ctx, grad_y, grad_logdet):
        x, log_s = ctx.saved_tensors
        scale = log_s.exp()
        grad_x = grad_y * scale if ctx.needs_input_grad[0] else None
        grad_s = None
        if ctx.needs_input_grad[1]:
            per_sample = grad_logdet.reshape(-1, *([1] * (x.dim() - 1)))
            grad_s = grad_y * x * scale + per_sample
        return grad_x, grad_s, grad_y


class LSTMPointwise(Function):
    """Fused element-wise part of an LSTM cell.

    gates: (B, 4H) pre-activations in the order input, forget, cell, output;
    c_prev: (B, H). Returns (h, c).
    """

    @staticmethod
    def forward(ctx, gates, c_prev):
        if gates.shape[-1] != 4 * c_prev.shape[-1]:
            raise ValueError("gates must hold four blocks of the state size")
        i, f, g, o = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c_prev + torch.sigmoid(i) * torch.tanh(g)
        ctx.save_for_backward(gates, c_prev)
        return torch.sigmoid(o) * torch.tanh(c), c

    @staticmethod
    def backward(ctx, grad_h, grad_c):
        gates, c_prev = ctx.saved_tensors
        i, f, g, o = gates.chunk(4, dim=-1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        tc = torch.tanh(f * c_prev + i * g)
        dc = grad_c + grad_h * o * (1 - tc * tc)
        grad_gates = None
        if ctx.needs_input_grad[0]:
            grad_gates = torch.cat([
                dc * g * i * (1 - i),
                dc * c_prev * f * (1 - f),
                dc * i * (1 - g * g),
                grad_h * tc * o * (1 - o),
            ], dim=-1)
        return grad_gates, dc * f if ctx.needs_input_grad[1] else None


class LSTMCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.proj = nn.Linear(input_size + hidden_size, 4 * hidden_size)

    def forward(self, x, state=None):
        if state is None:
            zeros = x.new_zeros(x.shape[0], self.hidden_size)
            state = (zeros, zeros)
        h, c = state
        return LSTMPointwise.apply(self.proj(torch.cat([x, h], dim=-1)), c)


class ForgetMult(Function):
    """QRNN pooling h_t = f_t * x_t + (1 - f_t) * h_{t-1} over dim 0; h0 may be None (zeros)."""

    @staticmethod
    def forward(ctx, f, x, h0):
        if f.shape != x.shape:
            raise ValueError("f and x must have the same shape")
        prev = torch.zeros_like(x[0]) if h0 is None else h0
        out = []
        for t in range(x.shape[0]):
            prev = f[t] * x[t] + (1 - f[t]) * prev
            out.append(prev)
        h = torch.stack(out)
        ctx.save_for_backward(f, x, h0, h)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_h):
        f, x, h0, h = ctx.saved_tensors
        grad_f, grad_x = torch.empty_like(f), torch.empty_like(x)
        carry = torch.zeros_like(h[0])
        for t in range(f.shape[0] - 1, -1, -1):
            if t > 0:
                prev = h[t - 1]
            else:
                prev = torch.zeros_like(h[0]) if h0 is None else h0
            total = grad_h[t] + carry
            grad_x[t] = total * f[t]
            grad_f[t] = total * (x[t] - prev)
            carry = total * (1 - f[t])
        return grad_f, grad_x, carry if h0 is not None and ctx.needs_input_grad[2] else None


class BatchNormTrain(Function):
    """Training-mode batch norm over dim 0, updating the running statistics in place.

    The running buffers are plain buffers: they are marked dirty and returned unused
    by the caller. Gradients flow through the batch statistics.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, running_mean, running_var, momentum, eps):
        if x.shape[0] < 2:
            raise ValueError("need more than one sample in training mode")
        mean = x.mean(0)
        var = x.var(0, unbiased=False)
        running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        running_var.mul_(1 - momentum).add_(x.var(0, unbiased=True), alpha=momentum)
        ctx.mark_dirty(running_mean, running_var)
        ctx.mark_non_differentiable(running_mean, running_var)
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return (x - mean) * torch.rsqrt(var + eps) * weight + bias, running_mean, running_var

    @staticmethod
    def backward(ctx, grad_output, _grad_mean, _grad_var):
        x, weight = ctx.saved_tensors
        inv = torch.rsqrt(x.var(0, unbiased=False) + ctx.eps)
        xhat = (x - x.mean(0)) * inv
        grad_x = None
        if ctx.needs_input_grad[0]:
            g = grad_output * weight
            grad_x = inv * (g - g.mean(0) - xhat * (g * xhat).mean(0))
        grad_w = (grad_output * xhat).sum(0) if ctx.needs_input_grad[1] else None
        grad_b = grad_output.sum(0) if ctx.needs_input_grad[2] else None
        return grad_x, grad_w, grad_b, None, None, None, None


def batch_norm_train(x, weight, bias, momentum=0.1, eps=1e-5):
    """Batch norm with fresh running statistics; returns the normalised batch."""
    running_mean, running_var = torch.zeros_like(x[0]).detach(), torch.ones_like(x[0]).detach()
    return BatchNormTrain.apply(x, weight, bias, running_mean, running_var, momentum, eps)[0]


class LinearFunction(Function):
    """Affine map x W^T + b with an optional bias, for any number of leading dims."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight)
        out = x.matmul(weight.t())
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        grad_x = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output.matmul(weight)
        flat = grad_output.reshape(-1, grad_output.shape[-1])
        if ctx.needs_input_grad[1]:
            grad_w = flat.t().matmul(x.reshape(-1, x.shape[-1]))
        if len(ctx.needs_input_grad) > 2 and ctx.needs_input_grad[2]:
            grad_b = flat.sum(0)
        grads = (grad_x, grad_w, grad_b)
        return grads[:len(ctx.needs_input_grad)]


class DropoutAddResidual(Function):
    """residual + dropout(x), keeping only a byte mask (1 byte per element instead of 4)."""

    @staticmethod
    def forward(ctx, x, residual, p):
        if not 0 <= p < 1:
            raise ValueError("p must be in [0, 1)")
        if x.shape != residual.shape:
            raise ValueError("x and residual must have the same shape")
        keep = torch.rand(x.shape, device=x.device) >= p
        ctx.save_for_backward(keep)
        ctx.scale = 1.0 / (1.0 - p)
        return residual + x * keep * ctx.scale

    @staticmethod
    def backward(ctx, grad_output):
        grad_x = None
        if ctx.needs_input_grad[0]:
            (keep,) = ctx.saved_tensors
            grad_x = grad_output * keep * ctx.scale
        return grad_x, grad_output if ctx.needs_input_grad[1] else None, None


def _randn(*shape, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


CASES = [
    dict(name="reversible_tanh_block", target=ReversibleTanhBlock,
         inputs=lambda: (_randn(3, 4).requires_grad_(), _randn(3, 4, seed=1).requires_grad_(),
                         (0.5 * _randn(4, 4, seed=2)).requires_grad_(), (0.5 * _randn(4, 4, seed=3)).requires_grad_()),
         declares={}, note="saves outputs only and reconstructs inputs; once_differentiable"),
    dict(name="recompute_mlp", target=RecomputeMLP,
         inputs=lambda: (_randn(3, 4).requires_grad_(), _randn(4, 6, seed=1).requires_grad_(), None, _randn(6, 2, seed=2).requires_grad_()),
         declares={}, note="checkpoint-like recomputation under enable_grad on detached leaves; None bias; once_differentiable"),
    dict(name="invertible_linear", target=InvertibleLinear,
         inputs=lambda: (_randn(2, 3, 4).requires_grad_(), (_randn(3, 3, seed=1) + 2 * torch.eye(3, dtype=torch.float64)).requires_grad_()),
         declares={}, note="two outputs incl. log|det|"),
    dict(name="affine_coupling", target=AffineCoupling,
         inputs=lambda: (_randn(3, 2, 2).requires_grad_(), (0.3 * _randn(3, 2, 2, seed=1)).requires_grad_(), _randn(3, 2, 2, seed=2).requires_grad_()),
         declares={}, note="setup_context; two outputs"),
    dict(name="lstm_pointwise", target=LSTMPointwise,
         inputs=lambda: (_randn(3, 8).requires_grad_(), torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)),
         declares={}, note="state of zeros; recomputes gates; double backward right"),
    dict(name="forget_mult", target=ForgetMult,
         inputs=lambda: (torch.sigmoid(_randn(4, 2, 3)).requires_grad_(), _randn(4, 2, 3, seed=1).requires_grad_(), _randn(2, 3, seed=2).requires_grad_()),
         declares={}, note="QRNN; optional initial state; once_differentiable"),
    dict(name="batch_norm_train", target=batch_norm_train,
         inputs=lambda: (_randn(5, 3).requires_grad_(), (1 + 0.1 * _randn(3, seed=1)).requires_grad_(), _randn(3, seed=2).requires_grad_()),
         declares={}, note="running buffers mark_dirty + non-differentiable; gradient through batch statistics"),
    dict(name="linear_optional_bias", target=LinearFunction,
         inputs=lambda: (_randn(2, 3, 4, dtype=torch.float32).requires_grad_(), _randn(5, 4, seed=1, dtype=torch.float32).requires_grad_(),
                         _randn(5, seed=2, dtype=torch.float32).requires_grad_()),
         declares={}, note="PyTorch-tutorial linear, with leading dims"),
]

# Verified in the same way, but beyond the hundred.
EXTRA_CASES = [
    dict(name="dropout_add_residual", target=DropoutAddResidual,
         inputs=lambda: (_randn(4, 6, dtype=torch.float32).requires_grad_(), _randn(4, 6, seed=1, dtype=torch.float32).requires_grad_(), 0.3),
         declares={}, note="random bool mask saved"),
]
