"""`Relu`, derived from `relu` by pullback (save='auto'): yours to keep."""

import torch


class Relu(torch.autograd.Function):
    """The positive part of x.

    Saved for backward:
        out  an output, which the caller keeps anyway
    """

    @staticmethod
    def forward(ctx, x):
        out = x.relu()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        (out,) = ctx.saved_tensors
        grad_x = grad_out.masked_fill(out <= 0, 0)
        return grad_x
