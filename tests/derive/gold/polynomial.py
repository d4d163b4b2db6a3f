"""`Polynomial`, derived from `polynomial` by pullback (save='auto'): yours to keep."""

import torch


class Polynomial(torch.autograd.Function):
    """A polynomial of third degree, by Horner's rule.

    Saved for backward:
        x             the input itself, which costs nothing to keep
        coefficients  the input itself, which costs nothing to keep

    Written for sizes with coefficients.shape[0] == 4.
    """

    @staticmethod
    def forward(ctx, x, coefficients):
        if coefficients.shape[0] != 4:
            raise ValueError(
                "`Polynomial`: coefficients.shape[0] must be 4, "
                f"got {coefficients.shape[0]}"
            )
        total = torch.zeros_like(x)
        c, c_1, c_2, c_3 = coefficients.unbind()
        total_1 = total * x + c
        total_2 = total_1 * x + c_1
        total_3 = total_2 * x + c_2
        total_4 = total_3 * x + c_3
        ctx.save_for_backward(x, coefficients)
        return total_4

    @staticmethod
    def backward(ctx, grad_total_4):
        x, coefficients = ctx.saved_tensors
        grad_c_3 = grad_total_4.sum()
        total = torch.zeros_like(x)
        c, c_1, c_2, _ = coefficients.unbind()
        total_1 = total * x + c
        total_2 = total_1 * x + c_1
        total_3 = total_2 * x + c_2
        grad_total_3 = grad_total_4 * x
        grad_c_2 = grad_total_3.sum()
        grad_total_2 = grad_total_3 * x
        grad_c_1 = grad_total_2.sum()
        grad_total_1 = grad_total_2 * x
        g_total = grad_total_4 * total_3 + grad_total_3 * total_2 + grad_total_2 * total_1
        grad_c = grad_total_1.sum()
        grad_x = g_total + grad_total_1 * total
        grad_coefficients = torch.stack([grad_c, grad_c_1, grad_c_2, grad_c_3])
        return grad_x, grad_coefficients
