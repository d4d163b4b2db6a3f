"""Sound functions pass `bad-input`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from pullback.check.rules.input.bad_input import check
from tests.check.functions import Product
from tests.check.subjects import findings, made, normal, rule_tests


class Prefix(Function):
    """Takes as many rows as there are weights, and refuses too many weights: on purpose."""

    @staticmethod
    def forward(ctx, x, w):
        if len(w) > len(x):
            raise ValueError("more weights than rows")
        ctx.save_for_backward(x, w)
        return x[: len(w)] * w[:, None]

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grad = torch.zeros_like(x)
        grad[: len(w)] = g * w[:, None]
        return grad, (g * x[: len(w)]).sum(-1)


class Zip(Function):
    @staticmethod
    def forward(ctx, x, w):
        if x.dim() != 2 or w.dim() != 1:
            raise ValueError("takes rows and weights")
        ctx.save_for_backward(x, w)
        return sum(row * weight for row, weight in zip(x, w, strict=False))

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        n = min(len(x), len(w))
        dx, dw = torch.zeros_like(x), torch.zeros_like(w)
        dx[:n] = w[:n, None] * g
        dw[:n] = (x[:n] * g).sum(-1)
        return dx, dw


class Reshapes(Function):
    """Reinterprets the second input, and turns its gradient instead of undoing that."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.shape = y.shape
        y = y.reshape(x.shape)
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        grad = g * x
        return g * y, grad if grad.shape == ctx.shape else grad.t()


SOUND = {
    "product": (Product, lambda: (normal(3, 4), normal(3, 4, seed=1))),
    "prefix": (Prefix, lambda: (normal(4, 3), normal(4, seed=1))),
}
PLANTED = {
    "zip": (Zip, lambda: (normal(4, 3), normal(4, seed=1)), "size 4 of `x` and of `w`"),
    "reshape": (
        Reshapes,
        lambda: (normal(3, 4), normal(3, 4, seed=1)),
        "gradient of `y`",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_index_beyond_size_is_named():
    def wrapped(t, i):
        return t[i % len(t)]

    def pull(g, t, i):
        return torch.zeros_like(t).index_add(0, i.clamp(max=len(t) - 1), g), None

    (found,) = findings(check, made(wrapped, pull), normal(5, 3), torch.tensor([0, 4, 2]))

    assert found.fix.startswith("compare the indices with the size")
