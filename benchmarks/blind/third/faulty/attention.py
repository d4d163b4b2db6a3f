"""Attention building blocks that recompute or fuse their backward pass."""
from support import *


def _softmax_backward(p, gp):
    return p * (gp - (gp * p).sum(-1, keepdim=True))


class ScaledDotProductAttention(Function):
    """softmax(q k^T / sqrt(d)) v; the probabilities are recomputed in backward."""

    @staticmethod
    @amp_fwd
    def forward(ctx, q, k, v):
        scale = q.size(-1) ** -0.5
        p = torch.softmax(q @ k.transpose(-1, -2) * scale, -1)
        ctx.save_for_backward(q, k, v)
        ctx.scale = scale
        return p @ v

    @staticmethod
    @once_differentiable
    @amp_bwd
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        p = torch.softmax(q @ k.transpose(-1, -2) * ctx.scale, -1)
        gs = _softmax_backward(p, grad_output @ v.transpose(-1, -2))
        gq = gs @ k * ctx.scale if ctx.needs_input_grad[0] else None
        gk = gs.transpose(-1, -2) @ q if ctx.needs_input_grad[1] else None
        gv = p.transpose(-1, -2) @ grad_output if ctx.needs_input_grad[2] else None
        return gq, gk, gv


class CausalAttention(Function):
    """Attention with an optional causal mask; keeps only q, k, v and the log-sum-exp."""

    @staticmethod
    @amp_fwd
    def forward(ctx, q, k, v, causal):
        s = q @ k.transpose(-1, -2) * q.size(-1) ** -0.5
        if causal:
            keep = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril()
            s = s.masked_fill(~keep, float("-inf"))
        lse = torch.logsumexp(s, -1, keepdim=True)
        ctx.save_for_backward(q, k, v, lse)
        return torch.exp(s - lse) @ v

    @staticmethod
    @once_differentiable
    @amp_bwd
    def backward(ctx, grad_output):
        q, k, v, lse = ctx.saved_tensors
        scale = q.size(-1) ** -0.5
        p = torch.exp(q @ k.transpose(-1, -2) * scale - lse)
        gs = _softmax_backward(p, grad_output @ v.transpose(-1, -2)) * scale
        gq = gs @ k if ctx.needs_input_grad[0] else None
        gk = gs.transpose(-1, -2) @ q if ctx.needs_input_grad[1] else None
        gv = p.transpose(-1, -2) @ grad_output if ctx.needs_input_grad[2] else None
        return gq, gk, gv, None


def causal_attention(q, k, v, causal=False):
    return CausalAttention.apply(q, k, v, causal)


class DropoutAttention(Function):
    """Attention with dropout on the probabilities; the mask is regenerated in backward."""

    @staticmethod
    @amp_fwd
    def forward(ctx, q, k, v, p_drop):
        ctx.save_for_backward(q, k, v)
        ctx.p_drop = p_drop
        p = torch.softmax(q @ k.transpose(-1, -2) * q.size(-1) ** -0.5, -1)
        return F.dropout(p, p_drop, p_drop > 0) @ v

    @staticmethod
    @once_differentiable
    @amp_bwd
    def backward(ctx, grad_output):
        need = ctx.needs_input_grad
        leaves = [t.detach().requires_grad_(r) for t, r in zip(ctx.saved_tensors, need)]
        with torch.enable_grad():
            q, k, v = leaves
            p = torch.softmax(q @ k.transpose(-1, -2) * q.size(-1) ** -0.5, -1)
            out = F.dropout(p, ctx.p_drop, ctx.p_drop > 0) @ v
        grads = iter(torch.autograd.grad(out, [t for t in leaves if t.requires_grad], grad_output))
        return (*[next(grads) if t.requires_grad else None for t in leaves], None)


def dropout_attention(q, k, v, p_drop=0.0):
    return DropoutAttention.apply(q, k, v, p_drop)


class MaskedSoftmax(Function):
    """Softmax over the last dimension among the positions kept by a boolean mask;
    a row that keeps none is zero."""

    @staticmethod
    def forward(ctx, x, keep):
        s = x.masked_fill(~keep, float("-inf"))
        p = torch.softmax(s, -1)
        ctx.save_for_backward(p)
        return torch.where(keep.any(-1, keepdim=True), p, torch.zeros_like(p))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        p, = ctx.saved_tensors
        return _softmax_backward(p, grad_output), None


class GroupedQueryScores(Function):
    """Scores of (B, H, T, D) queries against (B, K, S, D) keys; H is a multiple of K and
    consecutive query heads share a key head."""

    @staticmethod
    @amp_fwd
    def forward(ctx, q, k):
        rep = q.size(1) // k.size(1)
        ctx.save_for_backward(q, k)
        return q @ k.repeat_interleave(rep, 1).transpose(-1, -2)

    @staticmethod
    @once_differentiable
    @amp_bwd
    def backward(ctx, grad_output):
        q, k = ctx.saved_tensors
        rep = q.size(1) // k.size(1)
        gq = gk = None
        if ctx.needs_input_grad[0]:
            gq = grad_output @ k.repeat_interleave(rep, 1)
        if ctx.needs_input_grad[1]:
            g = grad_output.transpose(-1, -2) @ q
            gk = g.unflatten(1, (rep, k.size(1))).sum(1)
        return gq, gk


class CausalLinearAttention(Function):
    """out_t = q_t . sum_{s <= t} k_s v_s^T without normaliser, for (B, T, D) inputs."""

    @staticmethod
    @amp_fwd
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        state = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(1)
        return (q.unsqueeze(-2) @ state).squeeze(-2)

    @staticmethod
    @once_differentiable
    @amp_bwd
    def backward(ctx, grad_output):
        q, k, v = ctx.saved_tensors
        gq = gk = gv = None
        if ctx.needs_input_grad[0]:
            state = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(1)
            gq = (state @ grad_output.unsqueeze(-1)).squeeze(-1)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            back = (q.unsqueeze(-1) * grad_output.unsqueeze(-2)).cumsum(1)
            if ctx.needs_input_grad[1]:
                gk = (back @ v.unsqueeze(-1)).squeeze(-1)
            if ctx.needs_input_grad[2]:
                gv = (k.unsqueeze(-2) @ back).squeeze(-2)
        return gq, gk, gv


class RotaryFunction(Function):
    """Rotary position embedding on the two halves of the last dimension."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        a, b = x.chunk(2, -1)
        ctx.save_for_backward(cos, sin)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    @staticmethod
    def backward(ctx, grad_output):
        cos, sin = ctx.saved_tensors
        a, b = grad_output.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1), None, None


def rotary(x, base=100.0):
    """Applies the rotation for positions 0..T-1 to x of shape (..., T, D)."""
    half = x.size(-1) // 2
    freq = base ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angle = torch.arange(x.size(-2), dtype=x.dtype, device=x.device)[:, None] * freq
    return RotaryFunction.apply(x, angle.cos(), angle.sin())


class JacobianSoftmax(Function):
    """Softmax over the last dimension."""

    @staticmethod
    def forward(ctx, x):
        p = torch.softmax(x, -1)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, grad_output):
        p, = ctx.saved_tensors
        jac = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
        return (jac @ grad_output.unsqueeze(-1)).squeeze(-1)


def _qkv(b=2, t=3, d=4):
    return randn(b, t, d), randn(b, t, d, seed=1), randn(b, t, d, seed=2)


def _keep(*rows):
    return torch.tensor(rows, dtype=torch.bool)


CASES = [
    {"name": "attention_key_scale", "target": ScaledDotProductAttention, "inputs": _qkv,
     "fault": "The key gradient lacks the factor 1/sqrt(d).",
     "kind": "wrong", "visible": True, "evidence": lambda: wrong_first(ScaledDotProductAttention, _qkv(1, 2, 3))},
    {"name": "causal_attention_unmasked_backward", "target": causal_attention, "inputs": _qkv,
     "fault": "The probabilities recomputed in backward are not masked when causal is set.",
     "kind": "wrong", "visible": False, "evidence": lambda: wrong_first(causal_attention, _qkv(1, 3, 2) + (True,))},
    {"name": "dropout_attention_mask_redrawn", "target": dropout_attention, "inputs": _qkv,
     "fault": "The recomputation in backward draws another dropout mask.",
     "kind": "wrong", "visible": False, "evidence": lambda: wrong_first(dropout_attention, _qkv(1, 3, 2) + (0.5,))},
    {"name": "masked_softmax_empty_row", "target": MaskedSoftmax,
     "inputs": lambda: (randn(2, 3), _keep([1, 1, 0], [1, 1, 1])),
     "fault": "A row with nothing kept outputs zero but has a NaN gradient.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: bool(torch.isnan(analytic(MaskedSoftmax, (randn(2, 3), _keep([0, 0, 0], [1, 1, 1])))[0][0]).any())},
    {"name": "grouped_query_head_order", "target": GroupedQueryScores,
     "inputs": lambda: (randn(1, 4, 2, 3), randn(1, 1, 3, 3, seed=1)),
     "fault": "The key gradient groups the heads as (rep, K) though they are laid out (K, rep).",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(GroupedQueryScores, (randn(1, 4, 2, 3), randn(1, 2, 3, 3, seed=1)))},
    {"name": "linear_attention_reverse_cumsum", "target": CausalLinearAttention, "inputs": _qkv,
     "fault": "The gradients of k and v accumulate forward in time, not backward.",
     "kind": "wrong", "visible": True, "evidence": lambda: wrong_first(CausalLinearAttention, _qkv(1, 3, 2))},
    {"name": "rotary_inverse_rotation", "target": rotary, "inputs": lambda: (randn(2, 3, 4),),
     "fault": "backward applies the rotation, not its inverse (the sign of sin is not changed).",
     "kind": "wrong", "visible": True, "evidence": lambda: wrong_first(rotary, (randn(3, 4),))},
    {"name": "softmax_full_jacobian", "target": JacobianSoftmax, "inputs": lambda: (randn(2, 32),),
     "fault": "backward builds the full Jacobian of every row, quadratic in its length.",
     "kind": "wasteful", "visible": False,
     "evidence": lambda: backward_log(JacobianSoftmax, (randn(2, 64),)).largest >= 2 * 64 * 64},
]
