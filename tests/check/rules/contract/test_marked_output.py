"""Sound functions pass `marked-output`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.contract.marked_output import check
from tests.check.subjects import made, normal, rule_tests

X = normal(3, 5)


class Sorted(Function):
    @staticmethod
    def forward(ctx, x):
        values, index = x.sort(-1)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        return values, index

    @staticmethod
    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, index, g)


class WrongMark(Sorted):
    @staticmethod
    def forward(ctx, x):
        values, index = x.sort(-1)
        ctx.mark_non_differentiable(values)
        ctx.save_for_backward(index)
        return values, index


class Statistic(Function):
    """A side result that is marked on purpose."""

    @staticmethod
    def forward(ctx, x):
        rms = x.square().mean(-1, keepdim=True).sqrt()
        ctx.mark_non_differentiable(rms)
        ctx.save_for_backward(x)
        return x * 2, rms

    @staticmethod
    def backward(ctx, g, _):
        return 2 * g


class ReadsMarked(Statistic):
    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return 2 * g + h * x


class Whole(Function):
    @staticmethod
    def forward(ctx, x):
        return x.argmax(-1).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return None


def stopped(x):
    """Everything is detached."""
    return x.detach().sin() + 0 * x


def straight_through(x):
    """A surrogate in plain PyTorch."""
    return x + (x.round() - x).detach()


SOUND = {
    "sorted": (Sorted, (X,)),
    "statistic": (Statistic, (X,)),
    "whole numbers": (Whole, (X,)),
    "rounded": (lambda x: x.round(), (X,)),
    "straight through": (straight_through, (X,)),
    "on purpose": (
        made(lambda x: x.sin(), lambda g, x: torch.zeros_like(x), declares={"surrogate": "x"}),
        (X,),
    ),
}

PLANTED = {
    "wrong one": (WrongMark, (X,), "gradient of `x`"),
    "read in backward": (ReadsMarked, (X,), "output 1"),
    "outside of autograd": (stopped, (X,), "gradient of `x`"),
    "no_grad": (torch.no_grad()(lambda x: x.sin()), (X,), "gradient of `"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_gradcheck_alone_would_miss_the_mark():
    assert torch.autograd.gradcheck(ReadsMarked.apply, (X,))
