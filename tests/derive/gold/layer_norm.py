"""`LayerNorm`, derived from `layer_norm` by pullback (save='auto'): yours to keep."""

import torch


class LayerNorm(torch.autograd.Function):
    """Each row with mean zero and variance one, then scaled and shifted.

    Saved for backward:
        x       the input itself, which costs nothing to keep
        weight  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x, weight, bias):
        mean = x.mean(-1, keepdim=True)
        centered = x - mean
        variance = (centered**2).mean(-1, keepdim=True)
        normed = centered / (variance + 1e-5).sqrt()
        out = normed * weight + bias
        ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, weight = ctx.saved_tensors
        grad_bias = grad_out.sum(0)
        mean = x.mean(-1, keepdim=True)
        centered = x - mean
        variance = (centered**2).mean(-1, keepdim=True)
        root = (variance + 1e-5).sqrt()
        normed = centered / root
        grad_normed = grad_out * weight
        grad_weight = (grad_out * normed).sum(0)
        g_ratio = (grad_normed * (normed / root)).sum(-1, keepdim=True) / (2 * root)
        grad_centered = grad_normed / root - g_ratio / grad_out.shape[1] * (2 * centered)
        grad_x = grad_centered - grad_centered.mean(-1, keepdim=True)
        return grad_x, grad_weight, grad_bias
