"""`Swish`, derived from `swish` by pullback (save='auto'): yours to keep."""

import torch


class Swish(torch.autograd.Function):
    """x times its own sigmoid.

    Saved for backward:
        x  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x):
        gate = x.sigmoid()
        out = x * gate
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        grad_gate = grad_out * x
        gate = x.sigmoid()
        grad_x = grad_out * gate + grad_gate * (1 - gate) * gate
        return grad_x
