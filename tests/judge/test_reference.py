"""Differences of forward, where it cannot be called without a graph."""

import torch
from torch.autograd import Function

from pullback.judge.example import example_of
from pullback.judge.reference import Reference
from tests.check.subjects import check_of, findings, normal

check = check_of("wrong-gradient")


class Ahead(Function):
    """Differentiates in forward, so it needs inputs that require grad; one cotangent for all."""

    @staticmethod
    def forward(ctx, x, w):
        with torch.enable_grad():
            inside = x.detach().requires_grad_()
            y = (inside * w).sin()
            (slope,) = torch.autograd.grad(y.sum() + 0 * w.sum(), inside, retain_graph=True)
            torch.autograd.grad(y.sum(), w)
        ctx.save_for_backward(slope)
        return y.detach()

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g[0] * slope, None


def test_slope_is_known_of_a_forward_that_needs_a_graph():
    example = example_of((normal(3), normal(3, seed=1)))
    x, w = example.args

    slope = Reference(Ahead.apply).slope(example, [torch.ones(3)], {0: torch.ones(3)})

    assert abs(slope.value - float((w * (x * w).cos()).sum())) < 1e-6


def test_wrong_gradient_of_such_a_forward_is_found():
    (found, *_) = findings(check, Ahead, normal(3), normal(3, seed=1))

    assert "gradient of `x`" in found.at
