"""`GeluTanh`, derived from `gelu_tanh` by pullback (save='auto'): yours to keep."""

import torch


class GeluTanh(torch.autograd.Function):
    """The tanh approximation of gelu.

    Saved for backward:
        x  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x):
        inner = (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)
        out = 0.5 * x * (inner.tanh() + 1)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        inner = (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)
        tanh_inner = inner.tanh()
        grad_inner = grad_out * (0.5 * x) * (1 - tanh_inner**2)
        g_scaled = (2 / torch.pi) ** 0.5 * grad_inner
        grad_x = 0.5 * (grad_out * (tanh_inner + 1)) + g_scaled + 0.134145 * g_scaled * x**2
        return grad_x
