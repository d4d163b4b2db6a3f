"""Sound functions pass `unused-output`; planted faults are caught, and named."""

import pytest
import torch
from torch.autograd import Function

import pullback as pb
from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("unused-output")

X = normal(5)
BOTH = (lambda x: (x.sin(), x.cos()), lambda g, h, x: g * x.cos() - h * x.sin())


class Lazy(Function):
    """Gets None for what is unused, and can live with it."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        total = torch.zeros_like(x)
        if g is not None:
            total = total + g * x.cos()
        return total if h is None else total - h * x.sin()


class Greedy(Lazy):
    """Cannot."""

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * x.cos() - h * x.sin()


class AllOrNothing(Lazy):
    """Drops both when one is missing."""

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return None if g is None or h is None else g * x.cos() - h * x.sin()


SOUND = {
    "two outputs": (made(*BOTH), (X,)),
    "one output": (made(lambda x: x.exp(), lambda g, x: g * x.exp()), (X,)),
    "undefined": (Lazy, (X,)),
}

PLANTED = {
    "dropped by a surrogate": (
        made(
            lambda x: ((x > 0).to(x.dtype), x.round()),
            lambda g, h, x: g,
            declares={"surrogate": "x"},
        ),
        (X,),
        "with only output 1",
    ),
    "fails": (Greedy, (X,), "backward with only output"),
    "dropped": (AllOrNothing, (X,), "gradient of `x`"),
    "shortcut": (
        made(BOTH[0], lambda g, h, x: g if not h.any() else g * x.cos() - h * x.sin()),
        (X,),
        "with only output 0",
    ),
    "taken for dense": (
        made(lambda x: x * 3, lambda g, x: 3 * g if bool((g != 0).all()) else g),
        (X,),
        "with one entry",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_gradgradcheck_alone_would_miss_the_shortcut():
    assert torch.autograd.gradgradcheck(PLANTED["shortcut"][0].apply, (X,)) is True


@pytest.mark.slow
def test_thousand_outputs_are_no_hang():
    class Thousand(Function):
        @staticmethod
        def forward(ctx, x):
            return tuple(x * i for i in range(1000))

        @staticmethod
        def backward(ctx, *grads):
            return sum(i * g for i, g in enumerate(grads))

    report = pb.check(Thousand, (X,), select=["unused-output"])

    assert (report.ok, report.findings, report.lost) == (True, (), ())
