"""`Attention`, derived from `attention` by pullback (save='auto'): yours to keep."""

import torch


class Attention(torch.autograd.Function):
    """Values averaged by how well keys fit queries.

    Saved for backward:
        q      the input itself, which costs nothing to keep
        k      the input itself, which costs nothing to keep
        v      the input itself, which costs nothing to keep
        probs  computed in forward, and cheaper to keep than to compute again
    """

    @staticmethod
    def forward(ctx, q, k, v):
        scores = q @ k.mT / 3**0.5
        probs = scores.softmax(-1)
        out = probs @ v
        ctx.save_for_backward(q, k, v, probs)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, probs = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: with their history
            scores = q @ k.mT / 3**0.5
            probs = scores.softmax(-1)
        grad_v = probs.mT @ grad_out
        grad_probs = grad_out @ v.mT
        grad_scores = probs * (grad_probs - (grad_probs * probs).sum(-1, keepdim=True))
        g_ratio = grad_scores / 3**0.5
        grad_q = g_ratio @ k
        grad_k = g_ratio.mT @ q
        return grad_q, grad_k, grad_v
