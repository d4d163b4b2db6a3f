"""`vmap_of` equals a loop over the samples, also where there is no rule for it."""

import pytest
import torch

import pullback as pb
from pullback.errors import BatchError


class Scale(pb.Function):
    """x * factor row by row, without a batching rule."""

    @staticmethod
    def forward(ctx, x, weight, factor):
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return x * weight * factor, x.argmax()

    @staticmethod
    def backward(ctx, cotangent, _):
        x, weight = ctx.saved_tensors
        return cotangent * weight * ctx.factor, cotangent * x * ctx.factor, None


def batch(*shape):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64, generator=draw).requires_grad_()


def test_function_without_rule_equals_loop():
    x, weight = batch(4, 3), batch(3)
    values, places = pb.vmap_of(Scale, in_dims=(0, None, None))(x, weight, 2.0)

    assert torch.equal(values, x * weight * 2)
    assert torch.equal(places, x.argmax(-1))


def test_gradients_flow_through_the_loop():
    x, weight = batch(4, 3), batch(3)
    values, _ = pb.vmap_of(Scale, in_dims=(0, None, None))(x, weight, 2.0)
    got = torch.autograd.grad(values.sum(), (x, weight))
    expected = torch.autograd.grad((x * weight * 2).sum(), (x, weight))

    assert all(torch.allclose(a, b) for a, b in zip(got, expected, strict=True))


def test_batch_dimensions_may_be_anywhere():
    x = batch(3, 4)
    values, _ = pb.vmap_of(Scale, in_dims=(1, None, None), out_dims=0)(x, batch(3), 1.0)

    assert values.shape == (4, 3)


def test_derived_function_batches_by_rules():
    def swish(x):
        return x * x.sigmoid()

    derived = pb.derive(swish, batch(3))
    x = batch(5, 3)

    assert torch.allclose(pb.vmap_of(derived)(x), swish(x))


def test_number_of_dims_is_checked():
    with pytest.raises(BatchError) as caught:
        pb.vmap_of(Scale, in_dims=(0, None))(batch(4, 3), batch(3), 2.0)

    assert str(caught.value) == (
        "E305 batch: `in_dims` must have one entry per argument\n"
        "  expected: 3\n"
        "  got:      2, (0, None)"
    )


def test_batches_of_two_sizes_are_refused():
    with pytest.raises(BatchError, match="batch dimensions of one size"):
        pb.vmap_of(Scale, in_dims=(0, 0, None))(batch(4, 3), batch(5, 3), 2.0)
