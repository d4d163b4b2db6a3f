"""`Swiglu`, derived from `swiglu` by pullback (save='auto'): yours to keep."""

import torch


class Swiglu(torch.autograd.Function):
    """A linear layer gated by the swish of another one.

    Saved for backward:
        x     the input itself, which costs nothing to keep
        w     the input itself, which costs nothing to keep
        v     the input itself, which costs nothing to keep
        gate  computed in forward, and cheaper to keep than to compute again
        up    computed in forward, and cheaper to keep than to compute again
    """

    @staticmethod
    def forward(ctx, x, w, v):
        gate = x @ w
        up = x @ v
        out = torch.nn.functional.silu(gate) * up
        ctx.save_for_backward(x, w, v, gate, up)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, w, v, gate, up = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: with their history
            gate = x @ w
            up = x @ v
        grad_up = grad_out * torch.nn.functional.silu(gate)
        s = gate.sigmoid()
        grad_gate = grad_out * up * s * (gate * (1 - s) + 1)
        grad_v = x.T @ grad_up
        grad_w = x.T @ grad_gate
        grad_x = grad_up @ v.T + grad_gate @ w.T
        return grad_x, grad_w, grad_v
