"""Sound functions pass `wrong-jvp`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.functions import Sine
from tests.check.subjects import check_of, normal, rule_tests

check = check_of("wrong-jvp")


class Product(Function):
    @staticmethod
    def forward(a, b):
        return a * b

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a

    @staticmethod
    def jvp(ctx, ta, tb):
        a, b = ctx.saved_tensors
        return ta * b + a * tb


class Sign(Sine):
    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return -t * x.cos()


class OneSide(Product):
    @staticmethod
    def jvp(ctx, ta, tb):
        _, b = ctx.saved_tensors
        return ta * b


class Unready(Sine):
    """Reads in jvp what only backward is given."""

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return tangent * x.not_there


class Declines(Sine):
    @staticmethod
    def jvp(ctx, tangent):
        raise NotImplementedError("forward mode comes later")


SOUND = {
    "declines": (Declines, lambda: (normal(5),)),
    "sine": (Sine, lambda: (normal(5),)),
    "product": (Product, lambda: (normal(4), normal(4, seed=1))),
}
PLANTED = {
    "raises": (Unready, lambda: (normal(5),), "jvp along `x`"),
    "sign": (Sign, lambda: (normal(5),), "jvp along `x`"),
    "left out": (OneSide, lambda: (normal(4), normal(4, seed=1)), "jvp along `b`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_gradcheck_of_backward_misses_it():
    assert torch.autograd.gradcheck(Sign.apply, (normal(5),))
