"""`Leapfrog`, derived from `leapfrog` by pullback (save='auto'): yours to keep."""

import torch


class Leapfrog(torch.autograd.Function):
    """Three steps of a pendulum that keep its energy.

    Saved for backward:
        q  the input itself, which costs nothing to keep
        p  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, q, p):
        p_1 = p - 0.05 * q.sin()
        q_1 = q + 0.1 * p_1
        p_2 = p_1 - 0.1 * q_1.sin()
        q_2 = q_1 + 0.1 * p_2
        p_3 = p_2 - 0.1 * q_2.sin()
        q_3 = q_2 + 0.1 * p_3
        p_4 = p_3 - 0.05 * q_3.sin()
        ctx.save_for_backward(q, p)
        return q_3, p_4

    @staticmethod
    def backward(ctx, grad_q_3, grad_p_4):
        q, p = ctx.saved_tensors
        p_1 = p - 0.05 * q.sin()
        q_1 = q + 0.1 * p_1
        p_2 = p_1 - 0.1 * q_1.sin()
        q_2 = q_1 + 0.1 * p_2
        p_3 = p_2 - 0.1 * q_2.sin()
        q_3 = q_2 + 0.1 * p_3
        grad_q_3_total = grad_q_3 - 0.05 * grad_p_4 * q_3.cos()
        grad_p_3 = grad_p_4 + 0.1 * grad_q_3_total
        grad_q_2 = grad_q_3_total - 0.1 * grad_p_3 * q_2.cos()
        grad_p_2 = grad_p_3 + 0.1 * grad_q_2
        grad_q_1 = grad_q_2 - 0.1 * grad_p_2 * q_1.cos()
        grad_p = grad_p_2 + 0.1 * grad_q_1
        grad_q = grad_q_1 - 0.05 * grad_p * q.cos()
        return grad_q, grad_p
