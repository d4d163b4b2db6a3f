"""Section C: the cotangents that `backward` is given."""

import pytest
import torch
from torch.autograd import grad


def make_pair(Function, *, materialize):
    """`x * 1` in float64 and `x * 2` in float32; keeps the cotangents it gets on the class."""

    class Pair(Function):
        cotangents = ()

        @staticmethod
        def forward(ctx, x):
            if materialize is not None:
                ctx.set_materialize_grads(materialize)
            return x * 1, (x * 2).float()[:2]

        @staticmethod
        def backward(ctx, *cotangents):
            Pair.cotangents = cotangents
            return torch.ones(3)

    return Pair


def make_stop(Function):
    """An identity whose backward passes nothing on: its input gets an undefined cotangent."""

    class Stop(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return None

    return Stop


def pull(Function, use, *, materialize):
    """The cotangents that reach `Pair.backward` when `use` makes a scalar of its outputs."""
    Pair = make_pair(Function, materialize=materialize)
    x = torch.ones(3, requires_grad=True)
    use(*Pair.apply(x)).backward()
    return Pair.cotangents


@pytest.mark.parametrize("materialize", [None, True])
def test_undefined_cotangent_arrives_as_zeros(Function, materialize):
    """C01, L41: zeros of the output's shape and type, by default."""
    Stop = make_stop(Function)
    first, second = pull(
        Function,
        lambda a, b: Stop.apply(a).sum() + Stop.apply(b).sum(),
        materialize=materialize,
    )

    assert torch.equal(first, torch.zeros(3))
    assert torch.equal(second, torch.zeros(2, dtype=torch.float32))


def test_undefined_cotangent_may_stay_undefined(Function):
    """C02, L41: None after set_materialize_grads(False), and the other is not touched."""
    Stop = make_stop(Function)
    first, second = pull(
        Function, lambda a, b: (5 * a).sum() + Stop.apply(b).sum(), materialize=False
    )

    assert first.tolist() == [5.0, 5.0, 5.0]
    assert second is None


def test_unused_output_gives_zeros(Function):
    """C03: backward gets zeros for an output that nobody used."""
    first, second = pull(Function, lambda a, b: (5 * a).sum(), materialize=None)

    assert first.tolist() == [5.0, 5.0, 5.0]
    assert torch.equal(second, torch.zeros(2, dtype=torch.float32))


def test_unused_output_gives_none_without_materialisation(Function):
    """C03: or None with materialisation off."""
    first, second = pull(Function, lambda a, b: (7 * b).sum(), materialize=False)

    assert first is None
    assert torch.equal(second, torch.full((2,), 7.0, dtype=torch.float32))


def test_materialisation_may_be_set_in_setup_context(Function):
    """L41, L42: set_materialize_grads works from setup_context as well."""
    seen = []

    class Pair(Function):
        @staticmethod
        def forward(x):
            return x * 1, x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx, first, second):
            seen.append(second)
            return first

    x = torch.ones(2, requires_grad=True)
    grad(Pair.apply(x)[0].sum(), x)

    assert seen == [None]


def test_cotangent_of_double_backward_is_materialised(Function):
    """C01: the same holds when the cotangents themselves are differentiated."""

    class Pair(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x, x * 3

        @staticmethod
        def backward(ctx, first, second):
            return 2 * ctx.saved_tensors[0] * first + 3 * second

    x = torch.tensor([4.0], requires_grad=True)
    (gx,) = grad(Pair.apply(x)[0], x, create_graph=True)

    assert gx.tolist() == [8.0]
    assert grad(gx, x)[0].tolist() == [2.0]
