"""`Mse`, derived from `mse` by pullback (save='auto'): yours to keep."""

import torch


class Mse(torch.autograd.Function):
    """The mean squared error.

    Saved for backward:
        prediction  the input itself, which costs nothing to keep
        target      the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, prediction, target):
        error = prediction - target
        out = (error**2).mean()
        ctx.save_for_backward(prediction, target)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        prediction, target = ctx.saved_tensors
        error = prediction - target
        grad_prediction = grad_out / prediction.numel() * (2 * error)
        grad_target = -grad_prediction
        return grad_prediction, grad_target
