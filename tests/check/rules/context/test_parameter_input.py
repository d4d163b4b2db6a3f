"""Sound functions pass `parameter-input`; planted faults are caught, and named."""

import pytest
import torch
from torch.autograd import Function

from pullback.check.rules.context.parameter_input import check
from tests.check.subjects import findings, made, normal


class Asks(Function):
    """Another gradient for parameters."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.fused = isinstance(w, torch.nn.Parameter)
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad if ctx.fused else grad * x


SOUND = {
    "product": (
        made(lambda x, w: x * w, lambda g, x, w: (g * w, g * x)),
        lambda: (normal(4, 3), normal(4, 3, seed=1)),
    ),
}
PLANTED = {
    "asks": (Asks, lambda: (normal(4, 3), normal(4, 3, seed=1)), "gradient of `w`"),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_function_has_no_finding(name):
    target, args = SOUND[name]

    assert findings(check, target, *args()) == []


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_caught(name):
    target, args, at = PLANTED[name]
    found = findings(check, target, *args())

    assert [at in finding.at for finding in found] == [True]
