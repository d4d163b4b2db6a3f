"""`SegmentSum`, derived from `segment_sum` by pullback (save='auto'): yours to keep."""

import torch


class SegmentSum(torch.autograd.Function):
    """The sum of the values of each segment.

    Saved for backward:
        segment  the input itself, which costs nothing to keep

    Written for count=4.
    """

    @staticmethod
    def forward(ctx, values, segment):
        sums = values.new_zeros((4, values.shape[1]))
        out = sums.index_add(0, segment, values)
        ctx.save_for_backward(segment)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        (segment,) = ctx.saved_tensors
        grad_values = grad_out.index_select(0, segment)
        return grad_values, None
