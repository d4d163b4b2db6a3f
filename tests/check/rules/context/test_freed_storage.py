"""Sound functions pass `freed-storage`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.functions import Product
from tests.check.subjects import check_of, normal, rule_tests

check = check_of("freed-storage")


class SavesView(Function):
    """A view that went through `save_for_backward` follows its base."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w.t())
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, turned = ctx.saved_tensors
        return g @ turned, x.t() @ g


class Alias(Product):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a)
        ctx.b = b.detach()
        return a * b

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return g * ctx.b, g * a


class ByNumpy(Product):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(b)
        ctx.a = a.detach().numpy()
        return a * b

    @staticmethod
    def backward(ctx, g):
        (b,) = ctx.saved_tensors
        return g * b, g * torch.from_numpy(ctx.a)


SOUND = {
    "product": (Product, lambda: (normal(4), normal(4, seed=1))),
    "view": (SavesView, lambda: (normal(3, 4), normal(4, 2, seed=1))),
}
PLANTED = {
    "alias": (Alias, lambda: (normal(4), normal(4, seed=1)), "after `b` got other memory"),
    "numpy": (ByNumpy, lambda: (normal(4), normal(4, seed=1)), "after `a` got other memory"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
