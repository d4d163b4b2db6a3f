"""Sound functions pass `repeated-indices`; planted faults are caught, and named."""

import pytest
import torch
from torch.autograd import Function

from pullback.check.rules.shape.repeated_indices import check
from tests.check.subjects import findings, normal


def made(forward, backward):
    """A Function of these two, whose backward gets the inputs and the cotangent."""

    class Made(Function):
        @staticmethod
        def forward(ctx, *args):
            ctx.args = [a for a in args if not isinstance(a, torch.Tensor)]
            ctx.save_for_backward(*(a for a in args if isinstance(a, torch.Tensor)))
            return forward(*args)

        @staticmethod
        def backward(ctx, grad):
            return backward(*ctx.saved_tensors, *ctx.args, grad)

    return Made


def assigned(table, index, grad):
    """Only the last of several gradients."""
    out = torch.zeros_like(table)
    out[index] = grad
    return out, None


def added(table, index, grad):
    """The sum of all."""
    return torch.zeros_like(table).index_add(0, index, grad), None


def inputs():
    """A table, and indices of which none is repeated."""
    return normal(6, 3), torch.tensor([4, 0, 2])


SOUND = {"added": (made(lambda table, index: table[index], added), inputs)}
PLANTED = {
    "assigned": (made(lambda t, i: t[i], assigned), inputs, "gradient of `args[0]`"),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_function_has_no_finding(name):
    target, args = SOUND[name]

    assert findings(check, target, *args()) == []


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_caught(name):
    target, args, where = PLANTED[name]
    found = findings(check, target, *args())

    assert {f.rule.name for f in found} == {"repeated-indices"}
    assert any(where in f.at for f in found)


def test_gradcheck_alone_would_miss_it():
    target, args, _ = PLANTED["assigned"]

    assert torch.autograd.gradcheck(target.apply, args())
