"""`ComplexMultiply`, derived from `complex_multiply` by pullback (save='auto'): yours to keep."""

import torch


class ComplexMultiply(torch.autograd.Function):
    """The product of two complex tensors.

    Saved for backward:
        a  the input itself, which costs nothing to keep
        b  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, a, b):
        out = a * b
        ctx.save_for_backward(a, b)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        grad_b = grad_out * a.conj()
        grad_a = grad_out * b.conj()
        return grad_a, grad_b
