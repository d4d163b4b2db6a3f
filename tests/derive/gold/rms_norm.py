"""`RmsNorm`, derived from `rms_norm` by pullback (save='auto'): yours to keep."""

import torch


class RmsNorm(torch.autograd.Function):
    """Each row divided by its root mean square, then scaled.

    Saved for backward:
        x       the input itself, which costs nothing to keep
        weight  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x, weight):
        scale = ((x**2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        out = x * scale * weight
        ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        scale = ((x**2).mean(-1, keepdim=True) + 1e-6).rsqrt()
        g_scaled = grad_out * weight
        grad_weight = (grad_out * (x * scale)).sum(0)
        grad_scale = (g_scaled * x).sum(-1, keepdim=True)
        grad_x = g_scaled * scale - grad_scale * scale**3 / grad_out.shape[1] * x
        return grad_x, grad_weight
