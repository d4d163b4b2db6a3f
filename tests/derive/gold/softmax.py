"""`Softmax`, derived from `softmax` by pullback (save='auto'): yours to keep."""

import torch


class Softmax(torch.autograd.Function):
    """Exponentials of each row, divided by their sum.

    Saved for backward:
        x  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x):
        shifted = x - x.max(-1, keepdim=True).values
        exps = shifted.exp()
        out = exps / exps.sum(-1, keepdim=True)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        values, indices = x.max(-1, keepdim=True)
        shifted = x - values
        exps = shifted.exp()
        sum_exps = exps.sum(-1, keepdim=True)
        out = exps / sum_exps
        g_sum = (grad_out * (out / sum_exps)).sum(-1, keepdim=True)
        grad_exps = grad_out / sum_exps - g_sum
        grad_shifted = grad_exps * exps
        g_neg = -grad_shifted.sum(-1, keepdim=True)
        grad_x = grad_shifted + torch.zeros_like(x).scatter(-1, indices, g_neg)
        return grad_x
