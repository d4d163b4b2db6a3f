"""`jvp_of` pushes tangents through anything that has a backward."""

import pytest
import torch
from torch.autograd.functional import jvp as by_double_backward

import pullback as pb


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


class Product(pb.Function):
    """x * exp(y), with an intermediate saved and no forward-mode rule."""

    @staticmethod
    def forward(ctx, x, y):
        exp_y = y.exp()
        ctx.save_for_backward(x, exp_y)
        return x * exp_y

    @staticmethod
    def backward(ctx, cotangent):
        x, exp_y = ctx.saved_tensors
        return cotangent * exp_y, cotangent * x * exp_y


class TorchProduct(torch.autograd.Function):
    forward = staticmethod(Product.forward)
    backward = staticmethod(Product.backward)


class WithRule(pb.Function):
    """x ** 2 with a rule of its own that is wrong on purpose: it must be the one that runs."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * ctx.saved_tensors[0] * cotangent

    @staticmethod
    def jvp(ctx, tangent):
        return 100 * tangent


def plain(x, y):
    return x * y.exp()


TARGETS = {
    "Function of ours": Product,
    "Function of PyTorch's": TorchProduct,
    "derived": pb.derive(plain, leaf(1.0), leaf(1.0)),
    "plain function": plain,
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_push_equals_double_backward(target):
    primals, tangents = (leaf(0.5, -1.0), leaf(0.25, 2.0)), (leaf(1.0, 3.0), leaf(-2.0, 0.5))
    outputs, pushed = pb.jvp_of(target)(primals, tangents)
    expected = by_double_backward(plain, primals, tangents)

    assert torch.equal(outputs, expected[0])
    assert torch.allclose(pushed, expected[1], rtol=1e-12)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_input_without_tangent_stands_still(target):
    primals = leaf(0.5), leaf(0.25)
    _, pushed = pb.jvp_of(target)(primals, (None, leaf(2.0)))

    assert torch.allclose(pushed, 2 * plain(*primals), rtol=1e-12)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_push_can_be_differentiated(target):
    x, y = leaf(0.5), leaf(0.25)
    _, pushed = pb.jvp_of(target)((x, y), (torch.ones_like(x), torch.zeros_like(y)))
    (got,) = torch.autograd.grad(pushed, y)

    assert torch.allclose(got, y.exp(), rtol=1e-12)


def test_rule_of_the_user_is_used():
    _, pushed = pb.jvp_of(WithRule)((leaf(3.0),), (leaf(1.0),))

    assert pushed.item() == 100.0


def test_output_that_does_not_move_has_zeros():
    def constant(x):
        return x * 2, torch.ones(2, dtype=x.dtype)

    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return constant(x)

        @staticmethod
        def backward(ctx, first, second):
            return 2 * first

    _, pushed = pb.jvp_of(lambda x: (Two.apply(x)[0], x.detach() + 1))((leaf(1.0),), (leaf(3.0),))

    assert [p.item() for p in pushed] == [6.0, 0.0]
