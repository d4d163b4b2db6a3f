"""Sound functions pass `wrong-under-no-grad`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.context.wrong_under_no_grad import check
from tests.check.functions import Square
from tests.check.subjects import normal, rule_tests


class InnerGraph(Function):
    """Makes a graph of its own, which `no_grad` allows and inference mode does not."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(leaf.square().sum(), leaf)
        ctx.save_for_backward(slope)
        return x.square()

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return slope * g


class Shortcut(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale if any(ctx.needs_input_grad) else x.clone()

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale, g * x


class Version(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.version = x._version
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def prepared(x):
    """Needs a buffer that is there in training only."""
    buffer = x.new_zeros(x.shape) if torch.is_grad_enabled() else None
    return Square.apply(buffer + x)


SOUND = {
    "square": (Square, lambda: (normal(5),)),
    "graph of its own": (InnerGraph, lambda: (normal(5),)),
}
PLANTED = {
    "shortcut": (Shortcut, lambda: (normal(4), normal(4, seed=1)), "no input needs a gradient"),
    "inference": (Version, lambda: (normal(4),), "torch.inference_mode()"),
    "no_grad": (prepared, lambda: (normal(4),), "torch.no_grad()"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
