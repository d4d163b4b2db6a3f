"""Sound functions pass `touched-grad`; planted faults are caught, and named."""

import torch

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("touched-grad")

X, W = normal(3, 4), normal(4, seed=1)
SHARED = torch.ones(4, dtype=torch.float64, requires_grad=True)


def tanh(x, w):
    """What forward computes."""
    return (x * w).tanh()


def inner(g, x, w):
    """Differentiates inside, and fills no field."""
    with torch.enable_grad():
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.autograd.grad(tanh(x, w), (x, w), g)


def fills(g, x, w):
    """Fills the field of the saved weight, which is the caller's own."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        tanh(x, w).backward(g)
    return x.grad, w.grad


def clears(g, x, w):
    """Forgets what was there."""
    w.grad = None
    return inner(g, x, w)


class Around(torch.autograd.Function):
    """Fills the field of a tensor that it sees around it."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            (SHARED * 2).backward(torch.ones(4, dtype=torch.float64))
        return g


SOUND = {
    "inner": (made(tanh, inner), (X, W)),
    "product": (made(lambda x: x * x, lambda g, x: 2 * x * g), (X,)),
}

PLANTED = {
    "fills": (made(tanh, fills), (X, W), "input `w`"),
    "clears": (made(tanh, clears), (X, W), "input `w`"),
    "around": (Around, (X,), "`SHARED`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
