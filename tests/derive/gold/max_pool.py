"""`MaxPool`, derived from `max_pool` by pullback (save='auto'): yours to keep."""

import torch


class MaxPool(torch.autograd.Function):
    """The largest of each two by two block.

    Saved for backward:
        image  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, image):
        out = torch.nn.functional.max_pool2d(image, 2)
        ctx.save_for_backward(image)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        (image,) = ctx.saved_tensors
        indices = torch.nn.functional.max_pool2d(image, 2, return_indices=True)[1]
        reshaped = indices.flatten(2, 3)
        reshaped_1 = torch.zeros_like(image).flatten(2, 3)
        g_placed = reshaped_1.scatter_add(-1, reshaped, grad_out.flatten(2, 3))
        grad_image = g_placed.reshape(image.shape)
        return grad_image
