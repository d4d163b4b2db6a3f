"""`BatchNormEval`, derived from `batch_norm_eval` by pullback (save='auto'): yours to keep."""

import torch


class BatchNormEval(torch.autograd.Function):
    """Batch norm with running statistics.

    Saved for backward:
        x         the input itself, which costs nothing to keep
        mean      the input itself, which costs nothing to keep
        variance  the input itself, which costs nothing to keep
        weight    the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x, mean, variance, weight, bias):
        scale = weight / (variance + 1e-5).sqrt()
        out = (x - mean) * scale + bias
        ctx.save_for_backward(x, mean, variance, weight)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, mean, variance, weight = ctx.saved_tensors
        grad_bias = grad_out.sum(0)
        root = (variance + 1e-5).sqrt()
        scale = weight / root
        grad_x = grad_out * scale
        grad_scale = (grad_out * (x - mean)).sum(0)
        grad_mean = -grad_x.sum(0)
        grad_weight = grad_scale / root
        grad_variance = -(grad_scale * (scale / root) / (2 * root))
        return grad_x, grad_mean, grad_variance, grad_weight, grad_bias
