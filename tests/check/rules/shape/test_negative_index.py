"""Sound functions pass `negative-index`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.shape.negative_index import check
from tests.check.subjects import normal, rule_tests


class Picks(Function):
    """Counts from the end in backward as well."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.rows = len(x)
        return x[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        rows = torch.arange(ctx.rows)
        return (rows[:, None] == index % ctx.rows).to(grad) @ grad, None


class Compares(Function):
    """Finds no row that is called -1."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.rows = len(x)
        return x[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        rows = torch.arange(ctx.rows)
        return (rows[:, None] == index).to(grad) @ grad, None


class Raises(Function):
    """Backward raises at -1, which is loud."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.rows = len(x)
        return x[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, 3).index_add(0, index, grad), None


SOUND = {
    "picks": (Picks, lambda: (normal(4, 3), torch.tensor([0, 2, 2]))),
    "raises": (Raises, lambda: (normal(4, 3), torch.tensor([0, 2, 2]))),
}
PLANTED = {
    "compares": (Compares, lambda: (normal(4, 3), torch.tensor([0, 2, 2])), "gradient of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
