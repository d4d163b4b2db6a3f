"""`WithSaved`, derived from `with_saved` by pullback (save='auto'): yours to keep."""

import torch


class WithSaved(torch.autograd.Function):
    """A hand-written Function that saves an intermediate, between plain ops.

    Saved for backward:
        x      the input itself, which costs nothing to keep
        scale  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x, scale):
        inner = x * scale
        grown = inner.exp()
        out = (grown * grown).sin()
        ctx.save_for_backward(x, scale)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, scale = ctx.saved_tensors
        if torch.is_grad_enabled():
            raise RuntimeError(
                "`WithSaved` is differentiable once: its ops do not tell its second derivative"
            )
        inner = x * scale
        grown = inner.exp()
        cotangent = grad_out * (grown * grown).cos()
        grad_inner = 2 * cotangent * grown * grown
        grad_x = grad_inner * scale
        grad_scale = (grad_inner * x).sum(0)
        return grad_x, grad_scale
