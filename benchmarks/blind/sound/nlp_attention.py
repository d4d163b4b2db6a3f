"""Language-model building blocks: attention, norms, embeddings, fused losses, CRFs."""
import math

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class ChunkedAttention(Function):
    """Exact attention computed over key blocks with an online softmax (FlashAttention style).

    Args:
        q, k, v: (batch, heads, length, dim); q and k/v lengths may differ.
        causal: mask keys after the query position (needs equal lengths).
        block: number of keys handled at once.
    """

    @staticmethod
    def _scores(q, k, start, scale, causal):
        s = (q @ k.transpose(-1, -2)) * scale
        if causal:
            rows = torch.arange(q.shape[-2], device=q.device)[:, None]
            cols = start + torch.arange(k.shape[-2], device=q.device)[None, :]
            s = s.masked_fill(cols > rows, float("-inf"))
        return s

    @staticmethod
    def forward(ctx, q, k, v, causal, block):
        if causal and q.shape[-2] != k.shape[-2]:
            raise ValueError("causal attention needs equal lengths")
        scale = 1.0 / math.sqrt(q.shape[-1])
        out = q.new_zeros(*q.shape[:-1], v.shape[-1])
        peak = q.new_full((*q.shape[:-1], 1), float("-inf"))
        total = torch.zeros_like(peak)
        for start in range(0, k.shape[-2], block):
            kb, vb = k[..., start:start + block, :], v[..., start:start + block, :]
            s = ChunkedAttention._scores(q, kb, start, scale, causal)
            new_peak = torch.maximum(peak, s.amax(-1, keepdim=True))
            p = torch.exp(s - new_peak)
            decay = torch.exp(peak - new_peak)
            total = total * decay + p.sum(-1, keepdim=True)
            out = out * decay + p @ vb
            peak = new_peak
        out = out / total
        ctx.save_for_backward(q, k, v, out, peak + torch.log(total))
        ctx.scale, ctx.causal, ctx.block = scale, causal, block
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        q, k, v, out, lse = ctx.saved_tensors
        delta = (grad_out * out).sum(-1, keepdim=True)
        dq = torch.zeros_like(q)
        dk, dv = [], []
        for start in range(0, k.shape[-2], ctx.block):
            kb, vb = k[..., start:start + ctx.block, :], v[..., start:start + ctx.block, :]
            p = torch.exp(ChunkedAttention._scores(q, kb, start, ctx.scale, ctx.causal) - lse)
            dv.append(p.transpose(-1, -2) @ grad_out)
            ds = p * (grad_out @ vb.transpose(-1, -2) - delta) * ctx.scale
            dq += ds @ kb
            dk.append(ds.transpose(-1, -2) @ q)
        return dq, torch.cat(dk, dim=-2), torch.cat(dv, dim=-2), None, None


class RotaryEmbedding(Function):
    """Rotate feature pairs (first half, second half) by position-dependent angles.

    x: (batch, length, heads, dim); cos, sin: (length, dim // 2) constant tables.
    """

    @staticmethod
    def _rotate(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        c, s = cos[None, :, None, :], sin[None, :, None, :]
        return torch.cat([a * c - b * s, b * c + a * s], dim=-1)

    @staticmethod
    def forward(ctx, x, cos, sin):
        if cos.shape != (x.shape[1], x.shape[-1] // 2) or sin.shape != cos.shape:
            raise ValueError("cos and sin must be (length, dim // 2)")
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            raise ValueError("the rotary tables are constants")
        ctx.save_for_backward(cos, sin)
        return RotaryEmbedding._rotate(x, cos, sin)

    @staticmethod
    def backward(ctx, grad_output):
        cos, sin = ctx.saved_tensors
        return RotaryEmbedding._rotate(grad_output, cos, -sin), None, None


def rotary_tables(length, dim, base=10000.0, dtype=torch.float32):
    freq = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), freq)
    return angle.cos().to(dtype), angle.sin().to(dtype)


class RMSNormFunction(Function):
    """Root-mean-square normalisation over the last dim with an optional gain."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return y if weight is None else y * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        inv = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + ctx.eps)
        normed = x * inv
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            g = grad_output if weight is None else grad_output * weight
            grad_x = inv * (g - normed * (g * normed).mean(-1, keepdim=True))
        if weight is not None and ctx.needs_input_grad[1]:
            grad_weight = (grad_output * normed).reshape(-1, x.shape[-1]).sum(0)
        return grad_x, grad_weight, None


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6, elementwise_affine=True):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim)) if elementwise_affine else None

    def forward(self, x):
        return RMSNormFunction.apply(x, self.weight, self.eps)


class EmbeddingLookup(Function):
    """Embedding rows by token id; the padding row receives no gradient.

    This mirrors nn.Embedding(padding_idx=...): the padding id must not be trained.
    Rows of padding tokens come out as zeros, so the gradient is exact.
    """

    @staticmethod
    def forward(ctx, weight, tokens, padding_idx):
        ctx.save_for_backward(tokens)
        ctx.num_rows, ctx.padding_idx = weight.shape[0], padding_idx
        rows = weight[tokens]
        if padding_idx is not None:
            rows = rows.masked_fill((tokens == padding_idx).unsqueeze(-1), 0)
        return rows

    @staticmethod
    def backward(ctx, grad_output):
        (tokens,) = ctx.saved_tensors
        g = grad_output
        if ctx.padding_idx is not None:
            g = g.masked_fill((tokens == ctx.padding_idx).unsqueeze(-1), 0)
        dim = g.shape[-1]
        zeros = g.new_zeros(ctx.num_rows, dim)
        return zeros.index_add(0, tokens.reshape(-1), g.reshape(-1, dim)), None, None


class FusedLinearCrossEntropy(Function):
    """Mean cross-entropy of ``hidden @ weight.T`` without keeping the logits.

    The gradients are formed chunk by chunk in the forward (Liger-kernel style)
    and only scaled in the backward.
    """

    @staticmethod
    def forward(ctx, hidden, weight, target, chunk):
        if hidden.dim() != 2 or target.shape != hidden.shape[:1]:
            raise ValueError("expected hidden (N, D) and target (N,)")
        n = hidden.shape[0]
        want_h, want_w = ctx.needs_input_grad[:2]
        grad_h = torch.zeros_like(hidden) if want_h else None
        grad_w = torch.zeros_like(weight) if want_w else None
        total = hidden.new_zeros(())
        for start in range(0, n, chunk):
            h, t = hidden[start:start + chunk], target[start:start + chunk]
            logp = torch.log_softmax(h @ weight.t(), dim=-1)
            total = total - logp.gather(1, t[:, None]).sum()
            if want_h or want_w:
                d = logp.exp()
                d[torch.arange(len(t), device=t.device), t] -= 1
                if want_h:
                    grad_h[start:start + chunk] = d @ weight / n
                if want_w:
                    grad_w += d.t() @ h / n
        ctx.save_for_backward(grad_h, grad_w)
        return total / n

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        grad_h, grad_w = ctx.saved_tensors
        return (None if grad_h is None else grad_h * grad_output,
                None if grad_w is None else grad_w * grad_output,
                None, None)


class CRFLogPartition(Function):
    """Log-partition of a linear-chain CRF; its gradients are the posterior marginals.

    emissions: (T, K); transitions: (K, K), entry [i, j] scoring i -> j.
    """

    @staticmethod
    def forward(ctx, emissions, transitions):
        t_len, k = emissions.shape
        if transitions.shape != (k, k):
            raise ValueError("transitions must be (K, K)")
        alphas = [emissions[0]]
        for t in range(1, t_len):
            alphas.append(torch.logsumexp(alphas[-1][:, None] + transitions, dim=0) + emissions[t])
        alpha = torch.stack(alphas)
        logz = torch.logsumexp(alpha[-1], dim=0)
        ctx.save_for_backward(emissions, transitions, alpha, logz)
        return logz

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        emissions, transitions, alpha, logz = ctx.saved_tensors
        t_len = emissions.shape[0]
        beta = torch.zeros_like(alpha)
        grad_trans = torch.zeros_like(transitions)
        for t in range(t_len - 2, -1, -1):
            step = transitions + (emissions[t + 1] + beta[t + 1])[None, :]
            beta[t] = torch.logsumexp(step, dim=1)
            grad_trans += torch.exp(alpha[t][:, None] + step - logz)
        marginals = torch.exp(alpha + beta - logz)
        return grad_output * marginals, grad_output * grad_trans


class TokenPermute(Function):
    """Group tokens by expert (stable), returning them with the inverse permutation (MoE dispatch)."""

    @staticmethod
    def forward(ctx, tokens, expert_ids):
        if expert_ids.shape != tokens.shape[:1]:
            raise ValueError("one expert id per token")
        order = torch.argsort(expert_ids, stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=order.device)
        ctx.save_for_backward(inverse)
        ctx.mark_non_differentiable(inverse)
        return tokens.index_select(0, order), inverse

    @staticmethod
    def backward(ctx, grad_tokens, _grad_inverse):
        (inverse,) = ctx.saved_tensors
        return grad_tokens.index_select(0, inverse), None


class CausalLinearAttention(Function):
    """Unnormalised causal linear attention out_i = sum_{j<=i} (q_i . k_j) v_j, by running states.

    q, k: (B, L, D), v: (B, L, M). The (D, M) state starts at zero and is recomputed
    in the backward instead of being stored for every position.
    """

    @staticmethod
    def forward(ctx, q, k, v):
        if q.shape != k.shape or k.shape[:2] != v.shape[:2]:
            raise ValueError("incompatible shapes")
        ctx.save_for_backward(q, k, v)
        state = q.new_zeros(q.shape[0], q.shape[2], v.shape[2])
        out = q.new_empty(v.shape)
        for i in range(q.shape[1]):
            state = state + k[:, i, :, None] * v[:, i, None, :]
            out[:, i] = (q[:, i, :, None] * state).sum(1)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        dq = dk = dv = None
        if ctx.needs_input_grad[0]:
            dq = torch.empty_like(q)
            state = q.new_zeros(q.shape[0], q.shape[2], v.shape[2])
            for i in range(q.shape[1]):
                state = state + k[:, i, :, None] * v[:, i, None, :]
                dq[:, i] = (state * grad_output[:, i, None, :]).sum(2)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            dk, dv = torch.empty_like(k), torch.empty_like(v)
            rev = q.new_zeros(q.shape[0], q.shape[2], v.shape[2])
            for i in range(q.shape[1] - 1, -1, -1):
                rev = rev + q[:, i, :, None] * grad_output[:, i, None, :]
                dk[:, i] = (rev * v[:, i, None, :]).sum(2)
                dv[:, i] = (rev * k[:, i, :, None]).sum(1)
        return dq, dk, dv


class LockedDropout(Function):
    """Variational dropout: one mask per sequence, shared over time. x: (T, B, D)."""

    @staticmethod
    def forward(ctx, x, p, training):
        if not 0 <= p < 1:
            raise ValueError("p must be in [0, 1)")
        ctx.active = training and p > 0
        if not ctx.active:
            return x.clone()
        mask = (torch.rand(1, *x.shape[1:], device=x.device, dtype=x.dtype) >= p).to(x.dtype) / (1 - p)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, grad_output):
        if not ctx.active:
            return grad_output, None, None
        (mask,) = ctx.saved_tensors
        return grad_output * mask, None, None


def _randn(*shape, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


CASES = [
    dict(name="chunked_attention", target=ChunkedAttention,
         inputs=lambda: (*(_randn(1, 2, 5, 3, seed=i).requires_grad_() for i in range(3)), True, 2),
         declares={}, note="online softmax, causal; lse intermediate saved so once_differentiable"),
    dict(name="rotary_embedding", target=RotaryEmbedding,
         inputs=lambda: (_randn(2, 4, 2, 6, dtype=torch.float32).requires_grad_(), *rotary_tables(4, 6)),
         declares={}, note="rotation: backward is the inverse rotation; tables refused if they require grad"),
    dict(name="rms_norm", target=RMSNormFunction,
         inputs=lambda: (_randn(2, 3, 6).requires_grad_(), (1 + 0.1 * _randn(6, seed=1)).requires_grad_(), 1e-6),
         declares={}, note="optional gain; recomputes from inputs"),
    dict(name="embedding_lookup", target=EmbeddingLookup,
         inputs=lambda: (_randn(6, 4).requires_grad_(), torch.tensor([[1, 2, 0], [5, 2, 2]]), 0),
         declares={}, note="padding rows are zero in forward, so zero gradient is exact; repeats accumulate"),
    dict(name="fused_linear_cross_entropy", target=FusedLinearCrossEntropy,
         inputs=lambda: (_randn(5, 3).requires_grad_(), _randn(7, 3, seed=1).requires_grad_(), torch.tensor([0, 6, 3, 3, 1]), 2),
         declares={}, note="gradients precomputed only if needed; once_differentiable; None saved where not needed"),
    dict(name="crf_log_partition", target=CRFLogPartition,
         inputs=lambda: (_randn(5, 3).requires_grad_(), _randn(3, 3, seed=1).requires_grad_()),
         declares={}, note="forward-backward marginals, once_differentiable"),
    dict(name="token_permute", target=TokenPermute,
         inputs=lambda: (_randn(6, 3).requires_grad_(), torch.tensor([2, 0, 1, 0, 2, 1])),
         declares={}, note="gather by order, backward gathers by the inverse, which is also an output"),
    dict(name="causal_linear_attention", target=CausalLinearAttention,
         inputs=lambda: (_randn(2, 4, 3).requires_grad_(), _randn(2, 4, 3, seed=1).requires_grad_(), _randn(2, 4, 2, seed=2).requires_grad_()),
         declares={}, note="running state of zeros, in-place loops hence once_differentiable"),
    dict(name="locked_dropout", target=LockedDropout,
         inputs=lambda: (_randn(4, 3, 5, dtype=torch.float32).requires_grad_(), 0.4, True),
         declares={}, note="random mask saved and shared over time"),
]

# Verified in the same way, but beyond the hundred.
EXTRA_CASES = [
    dict(name="rms_norm_no_gain", target=RMSNormFunction,
         inputs=lambda: (_randn(4, 5).requires_grad_(), None, 1e-6),
         declares={}, note="same Function with None weight"),
]
