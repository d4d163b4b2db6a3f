"""Gradients of the wrong shape reach the callback, and the engine gets what fits."""

import pytest
import torch

from pullback.diagnose.shape_fitting import make_fitted, zeros
from pullback.function.gradients import sums_down_to
from tests.diagnose import faulty
from tests.diagnose.faulty import row


@pytest.mark.parametrize(
    ("shape", "target", "expected"),
    [((4, 6), (6,), True), ((4, 6), (4, 1), True), ((6,), (4, 6), False), ((6, 5), (5, 6), False)],
)
def test_engine_takes_what_sums_down(shape, target, expected):
    assert sums_down_to(shape, target) is expected


def test_gradient_of_wrong_shape_reaches_the_callback():
    seen = []

    def fit(position, gradient, shape):
        seen.append((position, tuple(gradient.shape), tuple(shape)))
        return gradient.t()

    x, w = row(4, 6).requires_grad_(), row(5, 6).requires_grad_()
    cotangent = row(4, 5, seed=3)
    _, got = torch.autograd.grad(make_fitted(faulty.LinearTransposed, fit)(x, w), [x, w], cotangent)

    assert seen == [(1, (6, 5), (5, 6))]
    assert torch.allclose(got, cotangent.t() @ x)


def test_gradients_are_returned_in_other_order():
    a, b = row(5).requires_grad_(), row(5, seed=2).requires_grad_()
    apply = make_fitted(faulty.ProductSwapped, zeros, order={0: 1, 1: 0})
    got = torch.autograd.grad(apply(a, b).sum(), [a, b])

    assert all(map(torch.equal, got, (b.detach(), a.detach())))


def test_context_of_backward_is_noted():
    x, saved = row(5).requires_grad_(), []
    note = lambda ctx: saved.extend(ctx.saved_tensors)  # noqa: E731
    make_fitted(faulty.SquareWithoutTwo, zeros, note=note)(x).sum().backward()

    assert [tensor.shape for tensor in saved] == [x.shape]
