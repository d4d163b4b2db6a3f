"""Normalisation layers, attention and other building blocks."""
import collections

import torch
import torch.nn as nn

from support import *


class LayerNormFunction(Function):
    """Layer norm with optional weight and bias; also returns mean and rstd, which carry no
    gradient."""

    @staticmethod
    def forward(ctx, x, weight=None, bias=None, eps=1e-5):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + eps)
        y = (x - mean) * rstd
        if weight is not None:
            y = y * weight
        if bias is not None:
            y = y + bias
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.mark_non_differentiable(mean, rstd)
        return y, mean, rstd

    @staticmethod
    @once_differentiable
    def backward(ctx, gy, _gmean, _grstd):
        x, weight, mean, rstd = ctx.saved_tensors
        gx = gw = gb = None
        xhat = (x - mean) * rstd
        if ctx.needs_input_grad[0]:
            g = gy if weight is None else gy * weight
            gx = rstd * (g - g.mean(-1, keepdim=True) - xhat * (g * xhat).mean(-1, keepdim=True))
        if ctx.needs_input_grad[1]:
            gw = (gy * xhat).reshape(-1, x.size(-1)).sum(0)
        if ctx.needs_input_grad[2]:
            gb = gy.reshape(-1, x.size(-1)).sum(0)
        return gx, gw, gb, None


class LayerNormLite(nn.Module):
    def __init__(self, dim, eps=1e-5, bias=True):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, dim, dtype=torch.float64))
        self.bias = nn.Parameter(torch.linspace(-0.1, 0.1, dim, dtype=torch.float64)) if bias else None
        self.eps = eps

    def forward(self, x):
        w = self.weight.to(x.dtype)
        b = self.bias.to(x.dtype) if self.bias is not None else None
        return LayerNormFunction.apply(x, w, b, self.eps)[0]


class L2NormalizeRows(Function):
    """Rows scaled to unit length; a zero row stays zero and has zero gradient."""

    @staticmethod
    def forward(ctx, x):
        n = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x)
        return torch.where(n > 0, x / n, torch.zeros_like(x))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, = ctx.saved_tensors
        n = x.norm(dim=-1, keepdim=True)
        zero = n == 0
        n = n.masked_fill(zero, 1)
        u = x / n
        return ((g - u * (g * u).sum(-1, keepdim=True)) / n).masked_fill(zero, 0)


class MaskedSoftmax(Function):
    """Softmax over keys that the boolean mask allows; a row with nothing allowed is all zero."""

    @staticmethod
    def forward(ctx, scores, mask):
        s = scores.masked_fill(~mask, float("-inf"))
        top = s.amax(-1, keepdim=True)
        top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
        e = torch.exp(s - top)
        total = e.sum(-1, keepdim=True)
        p = e / torch.where(total > 0, total, torch.ones_like(total))
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, grad_output):
        p, = ctx.saved_tensors
        return p * (grad_output - (grad_output * p).sum(-1, keepdim=True)), None


class ChunkedAttention(Function):
    """softmax(q k^T / sqrt d) v over blocks of keys with a running maximum; saves the output and
    the log-sum-exp only, probabilities are formed again in backward."""

    @staticmethod
    def forward(ctx, q, k, v, block, causal):
        scale = q.size(-1) ** -0.5
        out = torch.zeros(*q.shape[:-1], v.size(-1), dtype=q.dtype, device=q.device)
        m = q.new_full((*q.shape[:-1], 1), float("-inf"))
        l = torch.zeros_like(m)
        for j in range(0, k.size(-2), block):
            s = ChunkedAttention._scores(q, k, j, block, scale, causal)
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            p = torch.exp(s - m_new)
            c = torch.exp(m - m_new)
            l = l * c + p.sum(-1, keepdim=True)
            out = out * c + p @ v[..., j:j + block, :]
            m = m_new
        out = out / l
        ctx.save_for_backward(q, k, v, out, m + torch.log(l))
        ctx.args = block, causal, scale
        return out

    @staticmethod
    def _scores(q, k, j, block, scale, causal):
        s = q @ k[..., j:j + block, :].transpose(-1, -2) * scale
        if causal:
            rows = torch.arange(s.size(-2), device=s.device)[:, None]
            cols = torch.arange(j, j + s.size(-1), device=s.device)
            s = s.masked_fill(cols > rows, float("-inf"))
        return s

    @staticmethod
    @once_differentiable
    def backward(ctx, go):
        q, k, v, out, lse = ctx.saved_tensors
        block, causal, scale = ctx.args
        need_q, need_k, need_v = ctx.needs_input_grad[:3]
        gq = torch.zeros_like(q) if need_q else None
        gk = torch.zeros_like(k) if need_k else None
        gv = torch.zeros_like(v) if need_v else None
        delta = (go * out).sum(-1, keepdim=True) if need_q or need_k else None
        for j in range(0, k.size(-2), block):
            p = torch.exp(ChunkedAttention._scores(q, k, j, block, scale, causal) - lse)
            if need_v:
                gv[..., j:j + block, :] = p.transpose(-1, -2) @ go
            if need_q or need_k:
                ds = p * (go @ v[..., j:j + block, :].transpose(-1, -2) - delta) * scale
                if need_q:
                    gq += ds @ k[..., j:j + block, :]
                if need_k:
                    gk[..., j:j + block, :] = ds.transpose(-1, -2) @ q
        return gq, gk, gv, None, None


def attention(q, k, v, block=2, causal=False):
    """Attention for (..., L, D) tensors; ``causal`` needs equal lengths."""
    if causal and q.size(-2) != k.size(-2):
        raise ValueError("causal attention needs as many queries as keys")
    if k.size(-2) != v.size(-2):
        raise ValueError("keys and values must have one length")
    return ChunkedAttention.apply(q, k, v, block, causal)


class LinearFunction(Function):
    """The tutorial's linear layer for inputs of any rank."""

    @staticmethod
    def forward(x, weight, bias):
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            gx = grad_output @ weight
        if ctx.needs_input_grad[1]:
            gw = grad_output.reshape(-1, weight.size(0)).t() @ x.reshape(-1, weight.size(1))
        if ctx.needs_input_grad[2]:
            gb = grad_output.reshape(-1, weight.size(0)).sum(0)
        return gx, gw, gb


@torch.library.custom_op("tinynorm::glu_silu", mutates_args=())
def glu_silu(x: torch.Tensor) -> torch.Tensor:
    """SwiGLU gate: the first half of the last dimension is gated by the second."""
    a, b = x.chunk(2, dim=-1)
    return (a * F.silu(b)).contiguous()


@glu_silu.register_fake
def _(x):
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


def _glu_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def _glu_backward(ctx, grad):
    a, b = ctx.saved_tensors[0].chunk(2, dim=-1)
    s = torch.sigmoid(b)
    return torch.cat([grad * b * s, grad * a * s * (1 + b * (1 - s))], -1)


glu_silu.register_autograd(_glu_backward, setup_context=_glu_setup)


class RotaryFunction(Function):
    """Rotary position embedding; the backward is the same rotation the other way."""

    @staticmethod
    def _rotate(x, cos, sin):
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    @staticmethod
    def forward(ctx, x, offset, base):
        d = x.size(-1)
        if d % 2:
            raise ValueError("rotary embedding needs an even number of features")
        inv = base ** (-torch.arange(0, d, 2, dtype=x.dtype, device=x.device) / d)
        angle = torch.arange(offset, offset + x.size(-2), dtype=x.dtype, device=x.device)[:, None] * inv
        cos, sin = angle.cos(), angle.sin()
        ctx.save_for_backward(cos, sin)
        return RotaryFunction._rotate(x, cos, sin)

    @staticmethod
    def backward(ctx, grad_output):
        cos, sin = ctx.saved_tensors
        return RotaryFunction._rotate(grad_output, cos, -sin), None, None


Moments = collections.namedtuple("Moments", "mean var")


class _MomentsFunction(Function):
    @staticmethod
    def forward(ctx, x, unbiased):
        ctx.save_for_backward(x)
        ctx.div = x.size(-1) - int(unbiased)
        ctx.set_materialize_grads(False)
        mean = x.mean(-1)
        return mean, (x - mean.unsqueeze(-1)).square().sum(-1) / ctx.div

    @staticmethod
    def backward(ctx, gm, gv):
        x, = ctx.saved_tensors
        g = None
        if gm is not None:
            g = (gm / x.size(-1)).unsqueeze(-1).expand_as(x)
        if gv is not None:
            part = (2 / ctx.div) * gv.unsqueeze(-1) * (x - x.mean(-1, keepdim=True))
            g = part if g is None else g + part
        return g, None


def moments(x, unbiased=True):
    """Mean and variance of the last dimension as a named tuple."""
    if x.size(-1) <= int(unbiased):
        raise ValueError("too few entries for a variance")
    return Moments(*_MomentsFunction.apply(x, unbiased))


_layer_norm = LayerNormLite(5)


def _zero_row_inputs():
    x = randn(4, 3, seed=5, grad=False)
    x[2] = 0
    return (x.requires_grad_(),)


CASES = [
    case("moments_named_tuple", moments, lambda: (randn(3, 5, seed=1), True),
         "two outputs in a named tuple; an unused one arrives as None"),
    case("layer_norm_aux_outputs", LayerNormFunction,
         lambda: (randn(3, 5, seed=2), None, randn(5, seed=3), 1e-5),
         "optional weight left out; mean and rstd are outputs without gradient"),
    case("layer_norm_module", _layer_norm, lambda: (randn(2, 3, 5, seed=3),), "a module with parameters"),
    case("l2_normalize_zero_row", L2NormalizeRows, _zero_row_inputs,
         "the example holds a zero row, whose gradient is zero by convention"),
    case("masked_softmax_empty_row", MaskedSoftmax,
         lambda: (randn(3, 4, seed=7), torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)),
         "a fully masked row gives zeros, a row with one key a constant"),
    case("chunked_attention", attention,
         lambda: (randn(2, 5, 4, seed=8), randn(2, 5, 4, seed=9), randn(2, 5, 3, seed=10), 2, True),
         "several sizes go together; blocks do not divide the length"),
    case("linear_tutorial", LinearFunction, lambda: (randn(2, 3, 4, seed=11), randn(5, 4, seed=12), None),
         "the bias is optional and left out"),
    case("glu_silu_custom_op", glu_silu, lambda: (randn(2, 3, 6, seed=15),)),
    case("rotary_embedding", RotaryFunction, lambda: (randn(2, 4, 6, seed=16), 3, 10000.0),
         "linear in x, so it keeps the angles only"),
]
