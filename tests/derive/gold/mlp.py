"""`Mlp`, derived from `mlp` by pullback (save='auto'): yours to keep."""

import torch


class Mlp(torch.autograd.Function):
    """Two layers with a tanh between them.

    Saved for backward:
        x       the input itself, which costs nothing to keep
        w1      the input itself, which costs nothing to keep
        w2      the input itself, which costs nothing to keep
        hidden  computed in forward, and cheaper to keep than to compute again
        b1      the input itself, to be differentiated again
    """

    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2):
        hidden = (x @ w1 + b1).tanh()
        out = hidden @ w2 + b2
        ctx.save_for_backward(x, w1, w2, hidden, b1)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, w1, w2, hidden, b1 = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: with their history
            hidden = (x @ w1 + b1).tanh()
        grad_b2 = grad_out.sum(0)
        grad_w2 = hidden.T @ grad_out
        grad_hidden = grad_out @ w2.T
        g_scaled = grad_hidden * (1 - hidden**2)
        grad_b1 = g_scaled.sum(0)
        grad_w1 = x.T @ g_scaled
        grad_x = g_scaled @ w1.T
        return grad_x, grad_w1, grad_b1, grad_w2, grad_b2
