"""`HardSwish`, derived from `hard_swish` by pullback (save='auto'): yours to keep."""

import torch


class HardSwish(torch.autograd.Function):
    """Swish with a piecewise linear gate.

    Saved for backward:
        x  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x):
        gate = (x + 3).clamp(0, 6) / 6
        out = x * gate
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        grad_gate = grad_out * x
        total = x + 3
        gate = total.clamp(0, 6) / 6
        g_masked = torch.where((total >= 0) & (total <= 6), grad_gate / 6, 0.0)
        grad_x = grad_out * gate + g_masked
        return grad_x
