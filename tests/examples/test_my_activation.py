"""`MyActivation` is right, also far out; the published backward is wrong, in a known way."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

from examples.compare import compare, pull, worst_of
from examples.my_activation import MyActivation, MyActivationAsPublished, inputs, plain


def test_equals_plain_pytorch_and_its_derivative():
    assert worst_of(compare(MyActivation.apply, plain, inputs())).size < 1e-15


def test_first_and_second_derivative_pass_gradcheck():
    point = tuple(inputs().values())

    assert gradcheck(MyActivation.apply, point)
    assert gradgradcheck(MyActivation.apply, point)


@pytest.mark.parametrize("x", [-1000.0, -100.0, 100.0, 150.0])
def test_far_out_is_finite_in_single_precision(x):
    single = torch.tensor(x, requires_grad=True)
    double = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    output = MyActivation.apply(single)
    (got,) = torch.autograd.grad(output, single)
    (expected,) = torch.autograd.grad(plain(double), double)

    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-37)
    torch.testing.assert_close(output.double(), plain(double), rtol=1e-5, atol=1e-37)


def test_plain_expression_overflows_where_ours_does_not():
    x = torch.tensor(100.0, requires_grad=True)
    (of_plain,) = torch.autograd.grad(plain(x), x)
    (ours,) = torch.autograd.grad(MyActivation.apply(x), x)

    assert of_plain.isnan()
    assert ours.item() == pytest.approx(-0.5 * math.exp(-50), rel=1e-5)


def test_published_forward_is_the_same():
    output, _ = compare(MyActivationAsPublished.apply, plain, inputs())

    assert output.size < 1e-15


def test_published_gradient_is_far_off():
    _, gradient = compare(MyActivationAsPublished.apply, plain, inputs())

    assert gradient.size > 0.1


def test_published_backward_forgets_the_second_factor():
    x = inputs()["x"].detach()
    sigmoid, factor = torch.sigmoid(x), (1 + x.exp()) ** -0.5
    got = pull(MyActivationAsPublished.apply, inputs())["gradient of `x`"]
    right = pull(plain, inputs())["gradient of `x`"]
    forgotten = -0.5 * sigmoid * x.exp() * (1 + x.exp()) ** -1.5

    torch.testing.assert_close(got, sigmoid * (1 - sigmoid) * factor)
    torch.testing.assert_close(got + forgotten, right)


def test_published_sign_is_wrong_past_ln_two():
    x = torch.linspace(0.7, 4, 20, dtype=torch.float64, requires_grad=True)
    got = pull(MyActivationAsPublished.apply, {"x": x})["gradient of `x`"]
    right = pull(MyActivation.apply, {"x": x})["gradient of `x`"]

    assert (got > 0).all()
    assert (right < 0).all()


def test_gradcheck_rejects_the_published_backward():
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradcheck(MyActivationAsPublished.apply, tuple(inputs().values()))


def test_compiled_equals_eager():
    compiled = torch.compile(MyActivation.apply, backend="aot_eager", fullgraph=True)

    assert worst_of(compare(compiled, plain, inputs())).size < 1e-15
