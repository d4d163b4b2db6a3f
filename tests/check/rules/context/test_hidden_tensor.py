"""Sound functions pass `hidden-tensor`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.context.hidden_tensor import check
from tests.check.functions import Product
from tests.check.subjects import normal, rule_tests

GAIN = torch.full((4,), 1.5, dtype=torch.float64, requires_grad=True)
PLAIN = torch.full((4,), 1.5, dtype=torch.float64)


class ByGlobal(Function):
    @staticmethod
    def forward(ctx, x):
        return x * GAIN

    @staticmethod
    def backward(ctx, g):
        return g * GAIN.detach()


class Constant(Function):
    """A tensor from outside that requires no grad."""

    @staticmethod
    def forward(ctx, x):
        return x * PLAIN

    @staticmethod
    def backward(ctx, g):
        return g * PLAIN


def made(gain):
    """A Function that closes over `gain`."""

    class Closed(Function):
        @staticmethod
        def forward(ctx, x):
            return x * gain

        @staticmethod
        def backward(ctx, g):
            return g * gain.detach()

    return Closed


class InList(Function):
    @staticmethod
    def forward(ctx, x, weights):
        ctx.save_for_backward(*weights)
        return sum(x * w for w in weights)

    @staticmethod
    def backward(ctx, g):
        return g * sum(ctx.saved_tensors), None


def outside(x):
    """A callable whose parameter autograd sees by itself."""
    return Product.apply(x, GAIN)


SOUND = {
    "product": (Product, lambda: (normal(4), normal(4, seed=1))),
    "constant": (Constant, lambda: (normal(4),)),
    "seen by autograd": (outside, lambda: (normal(4),)),
    "list without grad": (InList, lambda: (normal(4), [normal(4, seed=1).detach()])),
}
PLANTED = {
    "global": (ByGlobal, lambda: (normal(3, 4),), "the global `GAIN`"),
    "closure": (
        made(PLAIN.clone().requires_grad_()),
        lambda: (normal(3, 4),),
        "the closed-over `gain`",
    ),
    "list": (InList, lambda: (normal(4), [normal(4, seed=1)]), "a tensor in `weights`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
