"""`Leaning`: A quarter of x, bent by constants of this module.

Written by pullback from `Leaning`, and yours: it needs torch and nothing else.
Run it to test it: outputs against what `Leaning` gave, gradients against differences.
"""

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


# The root of a half, as a table would have it.
ROOT = math.sqrt(0.5)


NODES = torch.tensor([0.25, 0.75])


def half(x: Tensor) -> Tensor:
    """Half of it."""
    return x / 2


def quarter(x):
    return half(half(x))


# Saved for backward:
#     x  an input, which costs nothing to keep
class Leaning(torch.autograd.Function):
    """A quarter of x, bent by constants of this module."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x):
        ctx.save_for_backward(x)
        return quarter(x) * ROOT + NODES[0] * x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (ROOT / 4 + 2 * NODES[0] * x)


# ---- self-test: `python leaning.py` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for, in double precision."""
    x = spread(0, -1.5, 1.9, 5).requires_grad_()
    return (x,)


RECORDED = {
    "output 0": [
        -0.02545591087, 0.2973349571, 0.196693679, -0.001697727913, 0.7409516291,
    ],
    "the gradient of `x`": [
        0.03805945721, -0.4299174785, 0.4774344762, -0.2148846787, 1.318125057,
    ],
}
"""What `Leaning` gave for these inputs when this was written."""


def cotangent(y, i):
    """What is pulled back from output `i`: other numbers for each of its elements."""
    row = torch.linspace(0.5 + i, 1.5 + i, y.numel(), dtype=torch.float64, device=y.device)
    return row.reshape(y.shape).to(y.dtype)


def same(got, what):
    """Raise, and name `what` it is, unless a tensor is as recorded but for rounding."""
    got = got.detach()
    expected = torch.tensor(RECORDED[what], dtype=got.dtype, device=got.device)
    allowed = {"rtol": 1e-07, "atol": 1e-07, "equal_nan": True}
    said = f"{what} is not as recorded: "
    torch.testing.assert_close(got, expected, **allowed, msg=lambda text: said + text)


def called(function, given):
    """The tensors that `function` gives, always with the same random numbers."""
    torch.manual_seed(0)
    outputs = function(*given)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return tuple(y for y in outputs if isinstance(y, torch.Tensor))


def self_test():
    """Raise unless outputs and gradients are as recorded, and gradients as differences say."""
    given = inputs()
    outputs = called(Leaning.apply, given)
    for i, y in enumerate(outputs):
        same(y, f"output {i}")
    live = [y for y in outputs if y.requires_grad]
    wanted = {"x": given[0]}
    cotangents = [cotangent(y, i) for i, y in enumerate(live)]
    leaves = list(wanted.values())
    pulled = torch.autograd.grad(live, leaves, cotangents, materialize_grads=True)
    for name, gradient in zip(wanted, pulled):
        same(gradient, f"the gradient of `{name}`")
    torch.autograd.gradcheck(lambda *given: called(Leaning.apply, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"Leaning FAILED its self-test\n{error}")
    print("Leaning: outputs and gradients are right")
