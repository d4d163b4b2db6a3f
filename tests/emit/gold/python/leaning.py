"""`Leaning`: A quarter of x, bent by constants of this module.

Written by pullback from `Leaning`, and yours: it needs torch and nothing else.
Run it to test it: outputs against `reference`, gradients against differences.
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


def reference(x):
    """What `Leaning` computes, in plain PyTorch: for comparison."""
    out = 2**-0.5 * (x / 2 / 2) + NODES[0] * x * x
    return out


# ---- self-test: `python leaning.py` ----


def spread(low, high, *shape):
    """Numbers between two, one from each of equal parts, in random order."""
    count = torch.Size(shape).numel()
    places = torch.randperm(count) + torch.rand(count, dtype=torch.float64)
    return (low + (high - low) * places / max(count, 1)).reshape(shape)


def inputs():
    """Seeded inputs like those that this was written for, in double precision."""
    torch.manual_seed(0)
    x = spread(-1.5, 1.9, 5).requires_grad_()
    return (x,)


def called(function, given):
    """The tensors that `function` gives, always with the same random numbers."""
    torch.manual_seed(0)
    outputs = function(*given)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return tuple(y for y in outputs if isinstance(y, torch.Tensor))


def same(got, expected, what):
    """Raise, and name `what` it is, unless two tensors are equal but for rounding."""
    allowed = {"rtol": 1e-07, "atol": 1e-08, "equal_nan": True}
    torch.testing.assert_close(got, expected, **allowed, msg=lambda text: f"{what}: {text}")


def self_test():
    """Raise unless outputs and gradients are those of `reference` and finite differences."""
    given = inputs()
    got, expected = called(Leaning.apply, given), called(reference, given)
    for i, (y, z) in enumerate(zip(got, expected)):
        same(y, z, f"output {i} is not that of `reference`")
    live = [i for i, y in enumerate(got) if y.requires_grad and expected[i].requires_grad]
    wanted = {"x": given[0]}
    cotangents = [torch.randn_like(got[i]) for i in live]
    pulled = [
        torch.autograd.grad(
            [ys[i] for i in live], list(wanted.values()), cotangents, materialize_grads=True
        )
        for ys in (got, expected)
    ]
    for name, x, y in zip(wanted, *pulled):
        same(x, y, f"the gradient of `{name}` is not that of `reference`")
    torch.autograd.gradcheck(lambda *given: called(Leaning.apply, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"Leaning FAILED its self-test\n{error}")
    print("Leaning: outputs and gradients are right")
