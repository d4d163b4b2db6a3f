"""Sound functions pass `needless-dirty`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.functions import DoubledInPlace
from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("needless-dirty")

X = normal(4)


class Clamped(Function):
    """Leaves positive numbers as they are, and writes them all the same."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x.clamp_(min=0)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (y > 0)


class ByNumpy(Clamped):
    """Writes past the version counter, and only into what is negative."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        raw = x.detach().numpy()
        raw[raw < 0] = 0
        ctx.save_for_backward(x)
        return x


class OnlyRead(Function):
    @staticmethod
    def forward(ctx, x, buffer):
        ctx.mark_dirty(buffer)
        ctx.save_for_backward(x)
        return x * x, buffer

    @staticmethod
    def backward(ctx, g, _):
        (x,) = ctx.saved_tensors
        return 2 * x * g, None


class InSetup(Function):
    """The mark stands in `setup_context`."""

    @staticmethod
    def forward(x):
        return x.sigmoid(), x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])
        ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx, g, h):
        (y,) = ctx.saved_tensors
        return g * y * (1 - y) + h


SOUND = {
    "doubled": (DoubledInPlace, (X,)),
    "clamped": (Clamped, (X.abs().detach(),)),
    "by numpy": (ByNumpy, (X.abs().detach(),)),
    "not marked": (made(lambda x: x * x, lambda g, x: 2 * x * g), (X,)),
}

PLANTED = {
    "only read": (OnlyRead, (X, torch.ones(4)), "input `buffer`"),
    "in setup_context": (InSetup, (X,), "input `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
