"""Sound functions pass `stale-after-edit`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

import pullback as pb
from pullback.check.rules.memory.stale_after_edit import check
from tests.check.subjects import made, normal, rule_tests

X, W = normal(4), normal(4, seed=1)


class OnCtx(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.x, ctx.w = x, w
        return x * w

    @staticmethod
    def backward(ctx, g):
        return g * ctx.w, g * ctx.x


class Ours(pb.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.x, ctx.w = x, w
        return x * w

    @staticmethod
    def backward(ctx, g):
        return g * ctx.w, g * ctx.x


class Copied(Function):
    """A copy cannot go stale."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach().clone()
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.x


class ThroughData(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.data)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class OutputData(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y.detach()
        return y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.y


SOUND = {
    "saved": (made(lambda x, w: x * w, lambda g, x, w: (g * w, g * x)), (X, W)),
    "ours": (Ours, (X, W)),
    "copied": (Copied, (X,)),
    "nothing kept": (made(lambda x: x * 3, lambda g, x: 3 * g), (X,)),
    "random": (made(lambda x: x * x, lambda g, x: 2 * x * g * torch.rand_like(g)), (X,)),
}

PLANTED = {
    "on ctx": (OnCtx, (X, W), "after input `x` was changed"),
    "through data": (ThroughData, (X,), "after input `x` was changed"),
    "output": (OutputData, (X,), "after output 0 was changed"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
