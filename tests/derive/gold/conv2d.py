"""`Conv2d`, derived from `conv2d` by pullback (save='auto'): yours to keep."""

import torch


class Conv2d(torch.autograd.Function):
    """A convolution with a stride, and a rectifier.

    Saved for backward:
        image   the input itself, which costs nothing to keep
        kernel  the input itself, which costs nothing to keep
        out     an output, which the caller keeps anyway
    """

    @staticmethod
    def forward(ctx, image, kernel, bias):
        features = torch.nn.functional.conv2d(image, kernel, bias, stride=2, padding=1)
        out = features.relu()
        ctx.save_for_backward(image, kernel, out)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        image, kernel, out = ctx.saved_tensors
        grad_features = grad_out.masked_fill(out <= 0, 0)
        grad_bias = grad_features.sum((0, 2, 3))
        grad_image = torch.nn.grad.conv2d_input(
            image.shape, kernel, grad_features, stride=2, padding=1
        )
        grad_kernel = torch.nn.grad.conv2d_weight(
            image, kernel.shape, grad_features, stride=2, padding=1
        )
        return grad_image, grad_kernel, grad_bias
