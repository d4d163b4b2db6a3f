"""`CumulativeMean`, derived from `cumulative_mean` by pullback (save='auto'): yours to keep."""

import torch


class CumulativeMean(torch.autograd.Function):
    """The mean of each element and those before it.

    Saved for backward:
        nothing
    """

    @staticmethod
    def forward(ctx, x):
        count = torch.arange(1, x.shape[1] + 1, device=x.device)
        out = x.cumsum(-1) / count
        return out

    @staticmethod
    def backward(ctx, grad_out):
        count = torch.arange(1, grad_out.shape[1] + 1, device=grad_out.device)
        grad_x = (grad_out / count).flip(-1).cumsum(-1).flip(-1)
        return grad_x
