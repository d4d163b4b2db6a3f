"""Sound functions pass `wrong-double-backward`; planted faults are caught, and named."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from tests.check.functions import Product, Square
from tests.check.subjects import check_of, normal, rule_tests, skips

check = check_of("wrong-double-backward")


class Linear(Function):
    """The second derivative is zero, and the gradient has no history by the input."""

    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, g):
        return 3 * g


class Relu(Function):
    """A mask that was saved is constant on either side of the kink."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        e = x.exp()
        ctx.save_for_backward(x, e)
        return x * e

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, e = ctx.saved_tensors
        return g * (e + x * e)


class Declared(Once):
    declares = {"once_differentiable": True}  # noqa: RUF012

    @staticmethod
    def backward(ctx, g):
        x, e = ctx.saved_tensors
        return g * (e + x * e)


class Intermediate(Once):
    """`e` is constant to the second backward, `x` is not."""

    @staticmethod
    def backward(ctx, g):
        x, e = ctx.saved_tensors
        return g * (e + x * e)


class Half(Function):
    """One of the terms is computed without a graph."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.sin() * w.exp()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        with torch.no_grad():
            slope = x.cos()
        return g * w.exp() * slope, g * x.sin() * w.exp()


class _CosineBackward(Function):
    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        return -g * x.sin()

    @staticmethod
    def backward(ctx, dd):
        g, x = ctx.saved_tensors
        return -dd * x.sin(), dd * g * x.cos()


class Cosine(Function):
    """A second backward written by hand, with the wrong sign."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx, g):
        return _CosineBackward.apply(g, *ctx.saved_tensors)


class BareAssertion(Square):
    @staticmethod
    def backward(ctx, g):
        if g.requires_grad:
            raise AssertionError
        return 2 * g * ctx.saved_tensors[0]


SOUND = {
    "square": (Square, lambda: (normal(5),)),
    "product": (Product, lambda: (normal(4), normal(4, seed=1))),
    "linear": (Linear, lambda: (normal(5),)),
    "kink": (Relu, lambda: (normal(3, 4),)),
    "once differentiable": (Once, lambda: (normal(5),)),
    "declared": (Declared, lambda: (normal(5),)),
    "complex": (Product, lambda: (torch.complex(normal(4), normal(4, seed=1)).detach(),) * 2),
}
PLANTED = {
    "saved intermediate": (Intermediate, lambda: (normal(5),), "with respect to `x`"),
    "no graph": (Half, lambda: (normal(4), normal(4, seed=1)), "with respect to `x`"),
    "a bare assertion": (BareAssertion, lambda: (normal(5),), "create_graph=True"),
    "wrong sign": (Cosine, lambda: (normal(5),), "with respect to `x`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_refusal_by_decorator_is_a_skip():
    told = [skip.reason for skip in skips(check, Once, normal(5))]

    assert told == ["it is once differentiable, by decorator or declaration"]


def test_first_order_gradcheck_misses_it():
    assert torch.autograd.gradcheck(Intermediate.apply, (normal(5),))
