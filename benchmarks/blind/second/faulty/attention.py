"""Attention variants."""
import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from support import *


class ScaledDotAttention(Function):
    """softmax(q k^T * scale) v, with probabilities recomputed from the row logsumexp."""

    @staticmethod
    def forward(ctx, q, k, v, scale):
        s = (q @ k.transpose(-1, -2)) * scale
        lse = torch.logsumexp(s, dim=-1, keepdim=True)
        out = torch.exp(s - lse) @ v
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, out, lse = ctx.saved_tensors
        p = torch.exp((q @ k.transpose(-1, -2)) * ctx.scale - lse)
        dv = p.transpose(-1, -2) @ do
        delta = (do * out).sum(-1, keepdim=True)
        ds = p * (do @ v.transpose(-1, -2) - delta)
        dq = (ds @ k) * ctx.scale
        dk = ds.transpose(-1, -2) @ q
        return dq, dk, dv, None


class CausalLinearAttention(Function):
    """out_t = sum_{s<=t} (q_t . k_s) v_s, unnormalised, shapes (T, D)."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        kv = torch.einsum("td,te->tde", k, v).cumsum(0)
        return torch.einsum("td,tde->te", q, kv)

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        kv = torch.einsum("td,te->tde", k, v).cumsum(0)
        gq = torch.einsum("te,tde->td", g, kv)
        qg = torch.einsum("td,te->tde", q, g)
        rev = qg.flip(0).cumsum(0).flip(0)
        gk = torch.einsum("te,tde->td", v, rev)
        gv = torch.einsum("td,tde->te", k, qg.cumsum(0))
        return gq, gk, gv


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class RotaryEmbedding(Function):
    """x * cos + rotate_half(x) * sin."""

    @staticmethod
    def forward(x, cos, sin):
        return x * cos + rotate_half(x) * sin

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, cos, sin = inputs
        ctx.save_for_backward(cos, sin)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        return g * cos + rotate_half(g * sin), None, None


class RelativePositionBias(Function):
    """scores + table[index], the table holding one bias per relative offset (Swin style)."""

    @staticmethod
    def forward(ctx, scores, table, index):
        ctx.save_for_backward(index)
        ctx.entries = table.shape[0]
        return scores + table[index.view(-1)].view(index.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        gt = None
        if ctx.needs_input_grad[1]:
            gt = g.new_zeros(ctx.entries)
            gt[index.view(-1)] = g.sum(0).view(-1)
        return g, gt, None


class RepeatKV(Function):
    """(B, H_kv, T, D) -> (B, H_kv * n_rep, T, D), each head repeated n_rep times in a row."""

    @staticmethod
    def forward(x, n_rep):
        b, h, t, d = x.shape
        return x[:, :, None].expand(b, h, n_rep, t, d).reshape(b, h * n_rep, t, d)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, n_rep = inputs
        ctx.n_rep = n_rep

    @staticmethod
    def backward(ctx, g):
        b, hr, t, d = g.shape
        return g.reshape(b, ctx.n_rep, hr // ctx.n_rep, t, d).sum(1), None


class MaskedSoftmax(Function):
    """Softmax over the last axis with masked entries at zero; fully masked rows give zeros."""

    @staticmethod
    def forward(ctx, scores, mask):
        s = scores.masked_fill(~mask, float("-inf"))
        p = torch.softmax(s, dim=-1)
        out = torch.nan_to_num(p, nan=0.0)
        ctx.save_for_backward(scores, mask)
        return out

    @staticmethod
    def backward(ctx, g):
        scores, mask = ctx.saved_tensors
        p = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
        return p * (g - (p * g).sum(-1, keepdim=True)), None


class CosineScores(Function):
    """tau * cos(q_i, k_j) as in Swin V2."""

    @staticmethod
    def forward(q, k, tau):
        qn = q / q.norm(dim=-1, keepdim=True)
        kn = k / k.norm(dim=-1, keepdim=True)
        return tau * (qn @ kn.t())

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, tau = inputs
        ctx.save_for_backward(q, k, tau)

    @staticmethod
    def backward(ctx, g):
        q, k, tau = ctx.saved_tensors
        ql, kl = q.norm(dim=-1, keepdim=True), k.norm(dim=-1, keepdim=True)
        qn, kn = q / ql, k / kl
        gq = tau * (g @ kn)
        gq = (gq - qn * (gq * qn).sum(-1, keepdim=True)) / ql
        gk = tau * (g.t() @ qn)
        gk = (gk - kn * (gk * qn).sum(-1, keepdim=True)) / kl
        gtau = (g * (qn @ kn.t())).sum()
        return gq, gk, gtau


class SeededDropoutAttention(Function):
    """Dropout on attention weights, the mask drawn again from the seed in backward."""

    @staticmethod
    def _mask(p, shape, seed, like):
        gen = torch.Generator(device=like.device).manual_seed(seed)
        return (torch.rand(shape, generator=gen, device=like.device) >= p).to(like.dtype)

    @staticmethod
    def forward(ctx, attn, v, p=0.0, seed=0):
        ctx.save_for_backward(attn, v)
        ctx.p, ctx.seed = p, seed
        keep = SeededDropoutAttention._mask(p, attn.shape, seed, attn)
        return (attn * keep / (1 - p)) @ v

    @staticmethod
    def backward(ctx, g):
        attn, v = ctx.saved_tensors
        keep = SeededDropoutAttention._mask(ctx.p, attn.shape, ctx.seed, attn)
        ga = (g @ v.transpose(-1, -2)) * keep / (1 - ctx.p)
        gv = (attn * keep).transpose(-1, -2) @ g
        return ga, gv, None, None


class AttentionWithWeights(Function):
    """Returns the output and the attention weights, both differentiable."""

    @staticmethod
    def forward(ctx, q, k, v):
        scale = 1.0 / math.sqrt(q.size(-1))
        w = torch.softmax(q @ k.t() * scale, dim=-1)
        ctx.save_for_backward(q, k, v, w)
        ctx.scale = scale
        return w @ v, w

    @staticmethod
    def backward(ctx, g_out, g_w):
        q, k, v, w = ctx.saved_tensors
        gw = g_out @ v.t()
        gs = w * (gw - (gw * w).sum(-1, keepdim=True)) * ctx.scale
        return gs @ k, gs.t() @ q, w.t() @ g_out


class WindowAttention(Function):
    """softmax(q k^T + bias) v over one window."""

    @staticmethod
    def forward(ctx, q, k, v, bias):
        scores = q @ k.transpose(-1, -2) + bias
        probs = torch.softmax(scores, dim=-1)
        out = probs @ v
        ctx.save_for_backward(q, k, v, scores, probs, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        q, k, v, _, probs, _ = ctx.saved_tensors
        gv = probs.transpose(-1, -2) @ g
        gp = g @ v.transpose(-1, -2)
        gs = probs * (gp - (gp * probs).sum(-1, keepdim=True))
        return gs @ k, gs.transpose(-1, -2) @ q, gv, gs


def masked_twin(s, m):
    e = torch.exp(s) * m
    return e / e.sum(-1, keepdim=True).clamp(min=1e-30)


def mask_ok():
    return torch.tensor([[True, True, False], [True, False, True]])


def saved_more_than_used():
    x = lambda s: rnd(1, 16, 2, seed=s)
    numel = saved_numel(WindowAttention, (x(1), x(2), x(3), rnd(1, 16, 16, seed=4)))
    needed = 3 * 32 + 256
    return numel >= needed + 256


CASES = [
    case("attention_sdpa_dk_scale", ScaledDotAttention,
         lambda: (rnd(2, 4, 3, seed=1, dtype=F32), rnd(2, 4, 3, seed=2, dtype=F32), rnd(2, 4, 3, seed=3, dtype=F32), 0.5),
         "The gradient of the keys lacks the softmax scale."),
    case("attention_causal_linear_dv", CausalLinearAttention,
         lambda: (rnd(5, 2, seed=4), rnd(5, 2, seed=5), rnd(5, 3, seed=6)),
         "The gradient of the values sums over past positions where it should sum over future ones."),
    case("attention_rotary_adjoint", RotaryEmbedding,
         lambda: (rnd(3, 4, seed=7), torch.cos(rnd(3, 4, seed=8, grad=False)), torch.sin(rnd(3, 4, seed=8, grad=False))),
         "The adjoint of the half rotation has the sign of the rotation itself, so the gradient is rotated forward again."),
    case("attention_relative_bias_table", RelativePositionBias,
         lambda: (rnd(2, 3, 3, seed=9), rnd(5, seed=10), torch.tensor([[2, 1, 0], [3, 2, 1], [4, 3, 2]])),
         "Table entries used several times receive only one of their gradients, by index assignment without accumulation."),
    case("attention_repeat_kv_groups", RepeatKV, lambda: (rnd(1, 2, 3, 2, seed=11), 2),
         "The gradient is folded as (n_rep, heads) where the forward laid the heads out as (heads, n_rep)."),
    case("attention_masked_softmax_empty_row", MaskedSoftmax, lambda: (rnd(2, 3, seed=12), mask_ok()),
         "A fully masked row gives NaN gradients although its output is the constant zero.", visible=False,
         twin=masked_twin,
         evidence=lambda: ok(MaskedSoftmax, (rnd(2, 3, seed=12), mask_ok()))
         and nonfinite(MaskedSoftmax, (rnd(2, 3, seed=12), torch.tensor([[True, True, False], [False] * 3]))),
         where="a fully masked row"),
    case("attention_cosine_scores_keys", CosineScores, lambda: (rnd(4, 3, seed=13), rnd(4, 3, seed=14), ten(1.7)),
         "The projection that removes the radial part of the key gradient is taken against the queries."),
    case("attention_seeded_dropout_values", SeededDropoutAttention, lambda: (uni(3, 3, seed=15), rnd(3, 2, seed=16)),
         "The value gradient lacks the 1/(1-p) rescaling of the dropout.", visible=False,
         elsewhere=lambda: (uni(3, 3, seed=15), rnd(3, 2, seed=16), 0.4, 3), where="p > 0"),
    case("attention_weights_output", AttentionWithWeights,
         lambda: (rnd(3, 4, seed=17), rnd(3, 4, seed=18), rnd(3, 2, seed=19)),
         "The gradient that arrives at the second output, the attention weights, is ignored."),
    case("attention_window_saves_scores", WindowAttention,
         lambda: (rnd(1, 4, 2, seed=20), rnd(1, 4, 2, seed=21), rnd(1, 4, 2, seed=22), rnd(1, 4, 4, seed=23)),
         "The raw scores and the output are saved for backward and never used there.",
         kind="wasteful", visible=False, evidence=saved_more_than_used),
]
