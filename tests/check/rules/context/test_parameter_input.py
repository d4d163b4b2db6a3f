"""Sound functions pass `parameter-input`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("parameter-input")


class Asks(Function):
    """Another gradient for parameters."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.fused = isinstance(w, torch.nn.Parameter)
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad if ctx.fused else grad * x


SOUND = {
    "product": (
        made(lambda x, w: x * w, lambda g, x, w: (g * w, g * x)),
        lambda: (normal(4, 3), normal(4, 3, seed=1)),
    ),
}
PLANTED = {
    "asks": (Asks, lambda: (normal(4, 3), normal(4, 3, seed=1)), "gradient of `w`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
