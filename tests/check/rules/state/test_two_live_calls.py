"""Sound functions pass `two-live-calls`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.state.two_live_calls import check
from tests.check.subjects import made, normal, rule_tests

X = normal(4)


class Saved(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        return x * (x > 0)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask


class OnClass(Function):
    @staticmethod
    def forward(ctx, x):
        OnClass.mask = x > 0
        return x * (x > 0)

    @staticmethod
    def backward(ctx, g):
        return g * OnClass.mask


class ShapeOnClass(Function):
    @staticmethod
    def forward(ctx, x):
        ShapeOnClass.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx, g):
        return g.expand(ShapeOnClass.shape)


class MaskOnClass(Function):
    @staticmethod
    def forward(ctx, x):
        MaskOnClass.mask = torch.rand_like(x) > 0.5
        return x * MaskOnClass.mask

    @staticmethod
    def backward(ctx, g):
        return g * MaskOnClass.mask


class MaskSaved(Function):
    @staticmethod
    def forward(ctx, x):
        mask = torch.rand_like(x) > 0.5
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask


class Stack(Function):
    kept = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        Stack.kept.append(x.detach())
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * Stack.kept.pop().cos()


SOUND = {
    "saved": (Saved, (X,)),
    "mask that is drawn and saved": (MaskSaved, (normal(16),)),
    "square": (made(lambda x: x * x, lambda g, x: 2 * x * g), (X,)),
    "random": (made(lambda x: x * x, lambda g, x: 2 * x * g * torch.rand_like(g)), (X,)),
    "other values refused": (
        made(lambda x: x if abs(float(x.sum()) - 2) < 1e-6 else [][0], lambda g, x: g),
        (torch.full((4,), 0.5),),
    ),
}

PLANTED = {
    "on the class": (OnClass, (normal(8),), "gradient of `x`"),
    "mask that is drawn": (MaskOnClass, (normal(16),), "gradient of `x`"),
    "shape": (ShapeOnClass, (X,), "after forward of another"),
    "stack": (Stack, (X,), "gradient of `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_gradcheck_alone_would_miss_the_class():
    assert torch.autograd.gradcheck(ShapeOnClass.apply, (X,))
