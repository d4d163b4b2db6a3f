"""`Bilinear`, derived from `bilinear` by pullback (save='auto'): yours to keep."""

import torch


class Bilinear(torch.autograd.Function):
    """A form that is linear in x and in y.

    Saved for backward:
        x        the input itself, which costs nothing to keep
        w        the input itself, which costs nothing to keep
        y        the input itself, which costs nothing to keep
        product  computed in forward, and cheaper to keep than to compute again
    """

    @staticmethod
    def forward(ctx, x, w, y):
        transposed = w.unsqueeze(-1).transpose(0, 1)
        reshaped = transposed.reshape(1, x.shape[1], w.shape[0] * w.shape[2])
        product = x.reshape(1, x.shape[0], x.shape[1]) @ reshaped
        reshaped_1 = product.reshape(x.shape[0], 1, w.shape[0], w.shape[2])
        transposed_1 = reshaped_1.transpose(1, 2)
        out = (transposed_1.mT.flatten(2, 3) @ y.unsqueeze(-1)).flatten(1, 2)
        ctx.save_for_backward(x, w, y, product)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, w, y, product = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: with their history
            transposed = w.unsqueeze(-1).transpose(0, 1)
            reshaped = transposed.reshape(1, x.shape[1], w.shape[0] * w.shape[2])
            product = x.reshape(1, x.shape[0], x.shape[1]) @ reshaped
        g_reshaped = grad_out.reshape(grad_out.shape[0], grad_out.shape[1], 1)
        reshaped_1 = product.reshape(x.shape[0], 1, w.shape[0], w.shape[2])
        transposed_1 = reshaped_1.transpose(1, 2)
        g_product = g_reshaped @ y.unsqueeze(-1).mT
        g_reshaped_1 = g_product.reshape(
            grad_out.shape[0], grad_out.shape[1], w.shape[2], 1
        )
        g_reshaped_2 = g_reshaped_1.mT.transpose(1, 2).reshape(product.shape)
        transposed = w.unsqueeze(-1).transpose(0, 1)
        reshaped = transposed.reshape(1, x.shape[1], w.shape[0] * w.shape[2])
        g_product_1 = x.reshape(1, x.shape[0], x.shape[1]).mT @ g_reshaped_2
        g_reshaped_3 = g_product_1.reshape(w.shape[1], grad_out.shape[1], w.shape[2], 1)
        g_product_2 = g_reshaped_2 @ reshaped.mT
        g_reshaped_4 = g_product_2.reshape(grad_out.shape[0], x.shape[1], 1, 1)
        grad_y = (transposed_1.mT.flatten(2, 3).mT @ g_reshaped).squeeze(-1)
        grad_w = g_reshaped_3.transpose(0, 1).squeeze(-1)
        grad_x = g_reshaped_4.squeeze(-1).squeeze(-1)
        return grad_x, grad_w, grad_y
