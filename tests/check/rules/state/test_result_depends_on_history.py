"""Sound functions pass `result-depends-on-history`; planted faults are caught, and named."""

import random

import torch
from torch.autograd import Function

from pullback.check.rules.state.result_depends_on_history import check
from tests.check.functions import Dropout
from tests.check.subjects import findings, made, normal, rule_tests

X = normal(6)


class Counter(Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Counter.calls += 1
        ctx.scale = 1 + Counter.calls % 2
        return x * ctx.scale

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale


class Warm(Function):
    steps = 0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        Warm.steps += 1
        return x * g * (2 if Warm.steps % 4 else 1)


class PythonMask(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.scale = random.random()
        return x * ctx.scale

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale


class Statistic(Function):
    """Updates a buffer that it is given: that is an argument."""

    @staticmethod
    def forward(ctx, x, running):
        ctx.save_for_backward(x)
        running.mul_(0.9).add_(x.detach())
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g, None


class Overwrites(Warm):
    """Another fault, of another rule."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x.data.mul_(2 * g)


SOUND = {
    "dropout": (Dropout, (X,)),
    "statistic": (Statistic, (X, torch.zeros(6))),
    "overwrites": (Overwrites, (X,)),
    "declared": (
        made(
            lambda x: x * 2,
            lambda g, x: 2 * g + 1e-7 * torch.rand_like(g),
            declares={"nondeterministic": 1e-6},
        ),
        (X,),
    ),
}

PLANTED = {
    "counter": (Counter, (X,), "output 0"),
    "every fourth": (Warm, (X,), "gradient of `x`"),
    "python's generator": (PythonMask, (X,), "output 0"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_other_generator_is_fragile():
    (finding,) = findings(check, PythonMask, X)

    assert (str(finding.weight), "Python's or NumPy's" in finding.why) == ("fragile", True)
