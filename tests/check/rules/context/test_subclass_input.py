"""Sound functions pass `subclass-input`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.functions import Product
from tests.check.subjects import check_of, normal, rule_tests, skips

check = check_of("subclass-input")


class ByNumpy(Function):
    """Refuses what has no memory of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Plain(Product):
    """Gives a plain tensor with the right values."""

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        scratch = torch.zeros(a.shape, dtype=a.dtype)
        torch.mul(g, b, out=scratch)
        return scratch, g * a


class ByClass(Product):
    """Another gradient for another class of tensor."""

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return (g * b if type(g) is torch.Tensor else g), g * a


SOUND = {
    "product": (Product, lambda: (normal(4), normal(4, seed=1))),
    "refuses": (ByNumpy, lambda: (normal(4),)),
    "plain gradient": (Plain, lambda: (normal(4), normal(4, seed=1))),
}
PLANTED = {
    "by class": (ByClass, lambda: (normal(4), normal(4, seed=1)), "gradient of `a` at"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_refusal_in_forward_is_a_skip():
    (skip,) = skips(check, ByNumpy, normal(4))

    assert "forward refuses a wrapper subclass" in skip.reason
