"""A context that keeps more than PyTorch lets go of as much as PyTorch does."""

import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import pullback as pb


def make(base, backward, *, keeps=False):
    """`sin(x) * x`, its sine saved, and kept as an attribute if it `keeps`."""

    class Kept(base):
        @staticmethod
        def forward(ctx, x):
            sine = x.sin()
            ctx.save_for_backward(x, sine)
            if keeps:
                ctx.kept = sine * 2
            return sine * x

    Kept.backward = staticmethod(backward)
    return Kept


def gradient_of(function, **options):
    """The gradient at some inputs, unpacked copies given by hooks, and how many were unpacked."""
    x = torch.tensor([0.5, 2.0], requires_grad=True)
    unpacked = []

    def unpack(tensor):
        unpacked.append(1)
        return tensor.clone()

    with saved_tensors_hooks(torch.clone, unpack):
        y = function.apply(x)
    return torch.autograd.grad(y.sum(), x, **options)[0], len(unpacked)


@pytest.mark.parametrize("base", [torch.autograd.Function, pb.Function])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_dropped_tensor_is_gone_while_backward_runs(base, is_recorded):
    alive = []

    def backward(ctx, g):
        x, sine = ctx.saved_tensors
        gradient = g * (sine.detach() + x.detach() * x.detach().cos())
        refs = [weakref.ref(x), weakref.ref(sine)]
        del x, sine
        alive.extend(ref() is not None for ref in refs)
        return gradient

    gradient_of(make(base, backward), create_graph=is_recorded)

    assert alive == [False, False]


def test_held_tensor_is_unpacked_once():
    def backward(ctx, g):
        saved = ctx.saved_tensors
        assert ctx.saved_tensors[0] is saved[0]
        assert ctx.saved_tensors[1] is saved[1]
        return g * (saved[1] + saved[0] * saved[0].cos())

    assert gradient_of(make(pb.Function, backward))[1] == 2


def test_tensor_asked_for_again_is_unpacked_again():
    def backward(ctx, g):
        return g * (ctx.saved_tensors[1] + ctx.saved_tensors[0] * ctx.saved_tensors[0].cos())

    expected, count = gradient_of(make(torch.autograd.Function, backward))
    got, ours = gradient_of(make(pb.Function, backward))

    assert torch.equal(got, expected)
    assert ours <= count


def test_attribute_needs_no_second_unpacking():
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        slope = x.cos() * x
        del x
        return g * (ctx.kept / 2 + slope + 0 * ctx.kept)

    assert gradient_of(make(pb.Function, backward, keeps=True))[1] == 3


def test_second_derivative_is_right_after_a_tensor_was_dropped():
    def backward(ctx, g):
        sine = ctx.saved_tensors[1] * 1
        return g * (sine + ctx.saved_tensors[0] * ctx.saved_tensors[0].cos())

    x = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)

    assert torch.autograd.gradgradcheck(make(pb.Function, backward).apply, (x,))


def test_saved_tensors_are_there_for_who_looks_at_the_node():
    x = torch.tensor([0.5, 2.0], requires_grad=True)
    y = make(pb.Function, lambda ctx, g: g * ctx.saved_tensors[1]).apply(x)
    node = y.grad_fn

    assert torch.equal(node.saved_tensors[0], x)
    assert len(node.saved_tensors) == 2
