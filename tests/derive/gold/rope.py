"""`Rope`, derived from `rope` by pullback (save='auto'): yours to keep."""

import torch


class Rope(torch.autograd.Function):
    """Pairs of channels turned by an angle per position.

    Saved for backward:
        x    the input itself, which costs nothing to keep
        cos  the input itself, which costs nothing to keep
        sin  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x, cos, sin):
        first, second = x.chunk(2, -1)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
        ctx.save_for_backward(x, cos, sin)
        return turned

    @staticmethod
    def backward(ctx, grad_turned):
        x, cos, sin = ctx.saved_tensors
        g_part, g_part_1 = grad_turned.chunk(2, -1)
        first, second = x.chunk(2, -1)
        grad_second = g_part_1 * cos - g_part * sin
        grad_sin = (g_part_1 * first).sum(0) - (g_part * second).sum(0)
        grad_first = g_part_1 * sin + g_part * cos
        grad_cos = (g_part_1 * second).sum(0) + (g_part * first).sum(0)
        grad_x = torch.cat([grad_first, grad_second], -1)
        return grad_x, grad_cos, grad_sin
