"""`Glu`, derived from `glu` by pullback (save='auto'): yours to keep."""

import torch


class Glu(torch.autograd.Function):
    """One half of the channels, gated by the other half.

    Saved for backward:
        x  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x):
        value, gate = x.chunk(2, -1)
        out = value * gate.sigmoid()
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        (x,) = ctx.saved_tensors
        value, gate = x.chunk(2, -1)
        sigmoid_gate = gate.sigmoid()
        grad_value = grad_out * sigmoid_gate
        grad_gate = grad_out * value * (1 - sigmoid_gate) * sigmoid_gate
        grad_x = torch.cat([grad_value, grad_gate], -1)
        return grad_x
