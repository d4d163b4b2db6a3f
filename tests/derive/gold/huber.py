"""`Huber`, derived from `huber` by pullback (save='auto'): yours to keep."""

import torch


class Huber(torch.autograd.Function):
    """Squared for small errors, linear for large ones.

    Saved for backward:
        prediction  the input itself, which costs nothing to keep
        target      the input itself, which costs nothing to keep

    Written for sizes with target.shape == prediction.shape.
    """

    @staticmethod
    def forward(ctx, prediction, target):
        if target.shape != prediction.shape:
            raise ValueError(
                "`Huber`: target.shape must be prediction.shape, "
                f"got {tuple(target.shape)} and {tuple(prediction.shape)}"
            )
        error = (prediction - target).abs()
        quadratic = 0.5 * error**2
        linear = error - 0.5
        out = torch.where(error < 1, quadratic, linear).mean()
        ctx.save_for_backward(prediction, target)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        prediction, target = ctx.saved_tensors
        g_ratio = grad_out / prediction.numel()
        diff = prediction - target
        error = diff.abs()
        mask = error < 1
        grad_linear = torch.where(mask, 0.0, g_ratio)
        grad_quadratic = torch.where(mask, g_ratio, 0.0)
        grad_error = grad_linear + grad_quadratic * error
        grad_prediction = grad_error * diff.sign()
        grad_target = -grad_prediction
        return grad_prediction, grad_target
