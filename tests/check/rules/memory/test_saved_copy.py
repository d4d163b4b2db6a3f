"""Sound functions pass `saved-copy`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("saved-copy")


class Itself(Function):
    """Saves its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class Size(Function):
    """Saves what is the input for positive numbers."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.abs())
        return x.abs() ** 2 * 0.5

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


class Added(Function):
    """Saves a sum, which is the input where the state is zeros."""

    @staticmethod
    def forward(ctx, x, state):
        total = x + state
        ctx.save_for_backward(total)
        return total.sin()

    @staticmethod
    def backward(ctx, grad):
        grad = grad * ctx.saved_tensors[0].cos()
        return grad, grad


class Clone(Function):
    """Saves a copy of its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.clone())
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


SOUND = {
    "added to zeros": (Added, lambda: (normal(4, 3), torch.zeros(4, 3, dtype=torch.float64))),
    "itself": (Itself, lambda: (normal(4, 3),)),
    "size": (Size, lambda: (normal(4, 3).detach().abs(),)),
}
PLANTED = {
    "clone": (Clone, lambda: (normal(4, 3),), "`x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
