"""`Quantized`, derived from `quantized` by pullback (save='auto'): yours to keep."""

import torch


class Quantized(torch.autograd.Function):
    """x rounded to multiples of a learned step, straight through.

    Saved for backward:
        x     the input itself, which costs nothing to keep
        step  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x, step):
        out = (x / step).round() * step
        ctx.save_for_backward(x, step)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, step = ctx.saved_tensors
        if torch.is_grad_enabled():
            raise RuntimeError(
                "`Quantized` is differentiable once: its ops do not tell its second derivative"
            )
        ratio = x / step
        g_scaled = grad_out * step
        grad_x = g_scaled / step
        grad_step = (grad_out * ratio.round()).sum() - (g_scaled * (ratio / step)).sum()
        return grad_x, grad_step
