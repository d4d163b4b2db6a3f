"""`GroupNorm`, derived from `group_norm` by pullback (save='auto'): yours to keep."""

import torch


class GroupNorm(torch.autograd.Function):
    """Each of three groups of channels with mean zero and variance one.

    Saved for backward:
        x       the input itself, which costs nothing to keep
        weight  the input itself, which costs nothing to keep
        mean    computed in forward, and cheaper to keep than to compute again
        rstd    computed in forward, and cheaper to keep than to compute again
    """

    @staticmethod
    def forward(ctx, x, weight, bias):
        reshaped = x.reshape(x.shape[0], 3, -1)
        mean = reshaped.mean(-1, keepdim=True)
        rstd = (reshaped.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
        scaled = ((reshaped - mean) * rstd).reshape(x.shape) * weight.reshape(-1, 1)
        out = scaled + bias.reshape(-1, 1)
        ctx.save_for_backward(x, weight, mean, rstd)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, weight, mean, rstd = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: with their history
            reshaped = x.reshape(x.shape[0], 3, -1)
            mean = reshaped.mean(-1, keepdim=True)
            rstd = (reshaped.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
        xhat = (x.reshape(grad_out.shape[0], 3, -1) - mean) * rstd
        grad_xhat = (grad_out * weight.reshape(-1, 1)).reshape(grad_out.shape[0], 3, -1)
        slope = (grad_xhat * xhat).mean(-1, keepdim=True)
        g_scaled = rstd * (grad_xhat - grad_xhat.mean(-1, keepdim=True) - xhat * slope)
        grad_x = g_scaled.reshape(x.shape)
        grad_weight = (grad_out * xhat.reshape(x.shape)).sum((0, 2))
        grad_bias = grad_out.sum((0, 2))
        return grad_x, grad_weight, grad_bias
