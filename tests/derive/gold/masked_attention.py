"""`MaskedAttention`, derived from `masked_attention` by pullback (save='auto'): yours to keep."""

import torch


class MaskedAttention(torch.autograd.Function):
    """Attention to the keys that the mask allows.

    Saved for backward:
        q      the input itself, which costs nothing to keep
        k      the input itself, which costs nothing to keep
        v      the input itself, which costs nothing to keep
        mask   the input itself, which costs nothing to keep
        probs  computed in forward, and cheaper to keep than to compute again
    """

    @staticmethod
    def forward(ctx, q, k, v, mask):
        scores = q.shape[2] ** -0.5 * (q @ k.mT)
        scores_1 = scores.masked_fill(~mask, -torch.inf)
        probs = scores_1.softmax(-1)
        out = probs @ v
        ctx.save_for_backward(q, k, v, mask, probs)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, mask, probs = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: with their history
            scores = q.shape[2] ** -0.5 * (q @ k.mT)
            scores_1 = scores.masked_fill(~mask, -torch.inf)
            probs = scores_1.softmax(-1)
        grad_v = probs.mT @ grad_out
        grad_probs = grad_out @ v.mT
        grad_scores_1 = probs * (grad_probs - (grad_probs * probs).sum(-1, keepdim=True))
        grad_scores = grad_scores_1.masked_fill(~mask, 0)
        g_scaled = q.shape[2] ** -0.5 * grad_scores
        grad_q = g_scaled @ k
        grad_k = g_scaled.mT @ q
        return grad_q, grad_k, grad_v, None
