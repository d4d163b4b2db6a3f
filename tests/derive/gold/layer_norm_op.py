"""`LayerNormOp`, derived from `layer_norm_op` by pullback (save='auto'): yours to keep."""

import torch


class LayerNormOp(torch.autograd.Function):
    """Layer norm by PyTorch's own op.

    Saved for backward:
        x       the input itself, which costs nothing to keep
        weight  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x, weight, bias):
        mean = x.mean(-1, keepdim=True)
        rstd = (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
        xhat = (x - mean) * rstd
        out = xhat * weight + bias
        ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        grad_xhat = grad_out * weight
        mean = x.mean(-1, keepdim=True)
        rstd = (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
        xhat = (x - mean) * rstd
        slope = (grad_xhat * xhat).mean(-1, keepdim=True)
        grad_x = rstd * (grad_xhat - grad_xhat.mean(-1, keepdim=True) - xhat * slope)
        grad_weight = (grad_out * xhat).sum(0)
        grad_bias = grad_out.sum(0)
        return grad_x, grad_weight, grad_bias
