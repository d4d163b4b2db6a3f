"""Sound functions pass `forward-fails-with-grad`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.contract.forward_fails_with_grad import check
from tests.check.functions import DoubledInPlace
from tests.check.subjects import made, normal, rule_tests

X = normal(4)


class Resized(Function):
    """PyTorch refuses to resize what requires grad."""

    @staticmethod
    def forward(ctx, x):
        return x.resize_(x.shape) * 2

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Detached(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Unset(Function):
    @staticmethod
    def forward(ctx, x):
        if not x.requires_grad:
            scale = 2
        return x * scale

    @staticmethod
    def backward(ctx, g):
        return 2 * g


SOUND = {
    "detached": (Detached, (X,)),
    "in place": (DoubledInPlace, (X,)),
    "refuses both": (made(lambda x: [][0], lambda g, x: g), (X,)),
}

PLANTED = {
    "resized": (Resized, (X,), "forward, when an input requires grad"),
    "unset": (Unset, (X,), "forward, when an input requires grad"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
