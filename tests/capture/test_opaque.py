"""A Function that is not traced, as two ops of a graph."""

import numpy
import pytest
import torch

from pullback.capture.opaque import probe, probed
from pullback.errors import CaptureError


class NumPySquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rate):
        ctx.save_for_backward(x)
        ctx.rate = rate
        return torch.from_numpy(rate * x.numpy() ** 2)

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * ctx.rate * x * cotangent, None


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.from_numpy(numpy.sin(x.numpy()))
        return y, y.view(-1)

    @staticmethod
    def backward(ctx, *cotangents):
        return cotangents[0]


def test_the_ops_are_forward_and_backward():
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    call = probe(NumPySquare, (x, 3.0))
    y, handle = call.forward(x.detach())
    assert y.tolist() == [3.0, 12.0]
    gradient = call.backward(handle, x.detach(), y, torch.ones(2))
    assert gradient.tolist() == [6.0, -12.0]


def test_backward_reads_the_tensors_that_it_is_given():
    """Compiled code may have written over those of forward."""
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    call = probe(NumPySquare, (x, 3.0))
    given = x.detach().clone()
    y, handle = call.forward(given)
    given.fill_(100.0)
    assert call.backward(handle, x.detach(), y, torch.ones(2)).tolist() == [6.0, -12.0]


def test_memory_of_arguments_is_not_held():
    x = torch.ones(1000, requires_grad=True)
    call = probe(NumPySquare, (x, 3.0))
    given = x.detach().clone()
    _, handle = call.forward(given)
    assert not any(isinstance(one, torch.Tensor) for one in handle._pb_opaque.saved)


def test_calls_alike_share_their_ops():
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    same = probe(NumPySquare, (x, 3.0)), probe(NumPySquare, (x, 3.0))
    assert same[0] is same[1]
    assert probe(NumPySquare, (x, 4.0)).name != same[0].name


def test_outputs_that_share_memory_are_refused():
    with pytest.raises(CaptureError, match="`Twice` must return tensors of their own"):
        probe(Twice, (torch.ones(3, requires_grad=True),))


def test_the_calls_of_some_classes_are_found_in_order():
    x = torch.ones(3, requires_grad=True)

    def program():
        return NumPySquare.apply(NumPySquare.apply(x, 1.0), 2.0)

    rates = [call.leaves[1] for call in probed(program, [NumPySquare])]
    assert rates == [1.0, 2.0]
    assert probed(program, [Twice]) == []
