"""`Snake`, derived from `snake` by pullback (save='auto'): yours to keep."""

import torch


class Snake(torch.autograd.Function):
    """x and a periodic bump of a learned frequency.

    Saved for backward:
        x  the input itself, which costs nothing to keep
        a  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x, a):
        bump = (a * x).sin() ** 2
        out = x + bump / a
        ctx.save_for_backward(x, a)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, a = ctx.saved_tensors
        scaled = a * x
        sin = scaled.sin()
        bump = sin**2
        grad_bump = grad_out / a
        g_scaled = grad_bump * (2 * sin) * scaled.cos()
        grad_a = (g_scaled * x).sum(0) - (grad_out * (bump / a / a)).sum(0)
        grad_x = grad_out + g_scaled * a
        return grad_x, grad_a
