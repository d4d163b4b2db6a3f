"""`MyComplexOp` is right; the published backward takes the saved sine for the input."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.gradcheck import GradcheckError

from examples.compare import compare, pull, worst_of
from examples.my_complex_op import MyComplexOp, MyComplexOpAsPublished, inputs, plain


def test_equals_plain_pytorch_and_its_derivative():
    assert worst_of(compare(MyComplexOp.apply, plain, inputs())).size < 1e-15


def test_first_and_second_derivative_pass_gradcheck():
    point = tuple(inputs().values())

    assert gradcheck(MyComplexOp.apply, point)
    assert gradgradcheck(MyComplexOp.apply, point)


def test_published_forward_is_the_same():
    output, _ = compare(MyComplexOpAsPublished.apply, plain, inputs())

    assert output.size < 1e-15


def test_published_gradient_is_far_off():
    _, gradient = compare(MyComplexOpAsPublished.apply, plain, inputs())

    assert gradient.size > 1


def test_published_backward_takes_sine_for_input():
    x = inputs()["x"].detach()
    got = pull(MyComplexOpAsPublished.apply, inputs())["gradient of `x`"]

    torch.testing.assert_close(got, 2 * x.sin() * x.sin().cos())


def test_published_mistake_hides_near_zero():
    x = torch.linspace(-0.01, 0.01, 5, dtype=torch.float64, requires_grad=True)
    _, gradient = compare(MyComplexOpAsPublished.apply, plain, {"x": x})

    assert gradient.size < 1e-6


def test_gradcheck_rejects_the_published_backward():
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradcheck(MyComplexOpAsPublished.apply, tuple(inputs().values()))


def test_compiled_equals_eager():
    compiled = torch.compile(MyComplexOp.apply, backend="aot_eager", fullgraph=True)

    assert worst_of(compare(compiled, plain, inputs())).size < 1e-15
