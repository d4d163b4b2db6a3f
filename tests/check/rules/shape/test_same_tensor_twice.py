"""Sound functions pass `same-tensor-twice`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.shape.same_tensor_twice import check
from tests.check.subjects import missed_by_gradcheck, normal, rule_tests, variadic


class Asks(Function):
    """Gives one gradient only where both inputs are one tensor."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.same = a is b
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * b, None if ctx.same else grad * a


class Distances(Function):
    """Between rows of two sets, which may have other numbers of rows."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.same = a.data_ptr() == b.data_ptr()
        ctx.save_for_backward(a, b)
        return (a[:, None] - b[None]).square().sum(-1)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        way = 2 * grad[:, :, None] * (a[:, None] - b[None])
        return way.sum(1), None if ctx.same else -way.sum(0)


SOUND = {
    "sizes": (
        variadic(torch.matmul, lambda a, b, g: (g @ b.t(), a.t() @ g)),
        lambda: (normal(3, 4), normal(4, 5, seed=1)),
    ),
    "product": (
        variadic(lambda a, b: a * b, lambda a, b, g: (g * b, g * a)),
        lambda: (normal(4, 5), normal(4, 5, seed=1)),
    ),
}
PLANTED = {
    "asks": (Asks, lambda: (normal(4), normal(4, seed=1)), "both `a` and `b`"),
    "distances": (Distances, lambda: (normal(4, 2), normal(3, 2, seed=1)), "both `a` and `b`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
test_gradcheck_alone_would_miss_it = missed_by_gradcheck(PLANTED, "asks")
