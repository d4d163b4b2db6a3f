"""Sound functions pass `detached-double-backward`; planted faults are caught, and named."""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.check.functions import Square
from tests.check.subjects import check_of, normal, rule_tests, skips

check = check_of("detached-double-backward")


class Linear(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, g):
        return 3 * g


class Raises(Function):
    """Refuses the second derivative aloud."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _RaisesBackward.apply(g, x)


class _RaisesBackward(Function):
    @staticmethod
    def forward(ctx, g, x):
        return g * x.cos()

    @staticmethod
    def backward(ctx, dd):
        raise NotImplementedError("no second derivative")


class Detached(Square):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x.detach() * g


class ThroughNumpy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.from_numpy(np.cos(x.detach().numpy()))


class CutCotangent(Square):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g.detach()


class OnceUnderAutocast(Function):
    """Another decorator stands above `once_differentiable`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x * x


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class AlsoWrong(Square):
    """The first derivative is off by a little, and the second is cut."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2.0001 * g * x.detach()


class Step(Function):
    """A surrogate, of a tensor that forward computed."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.sigmoid())
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * (1 - y)


class StraightThrough(Step):
    @staticmethod
    def backward(ctx, g):
        return g


Step.declares = {"surrogate": "x"}


SOUND = {
    "straight through": (StraightThrough, lambda: (normal(5),)),
    "once, in a program": (lambda x: 2 * Once.apply(x), lambda: (normal(5),)),
    "once": (OnceUnderAutocast, lambda: (normal(5),)),
    "square": (Square, lambda: (normal(5),)),
    "linear": (Linear, lambda: (normal(5),)),
    "refuses": (Raises, lambda: (normal(5),)),
}
PLANTED = {
    "beside a wrong first derivative": (AlsoWrong, lambda: (normal(5),), "with respect to `x`"),
    "of a surrogate": (Step, lambda: (normal(5),), "with respect to `x`"),
    "detach": (Detached, lambda: (normal(5),), "with respect to `x`"),
    "numpy": (ThroughNumpy, lambda: (normal(5),), "with respect to `x`"),
    "cotangent": (CutCotangent, lambda: (normal(5),), "with respect to the cotangent"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_loud_refusal_is_a_skip():
    told = [skip.reason for skip in skips(check, Raises, normal(5))]

    assert told == ["it refuses aloud: NotImplementedError: no second derivative"]


def test_first_order_gradcheck_misses_it():
    assert torch.autograd.gradcheck(Detached.apply, (normal(5),))
