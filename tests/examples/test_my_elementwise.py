"""`MyElementWise` is x * exp(-y), right in the Python and in the C++ spelling."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from examples.compare import compare, pull, worst_of
from examples.my_elementwise import MyElementWise, MyElementWiseInCppNames, inputs, plain

both_spellings = pytest.mark.parametrize("function", [MyElementWise, MyElementWiseInCppNames])


@both_spellings
def test_equals_plain_pytorch_and_its_derivative(function):
    differences = compare(function.apply, plain, inputs())

    assert [d.what for d in differences] == ["output", "gradient of `x`", "gradient of `y`"]
    assert worst_of(differences).size < 1e-14


@both_spellings
def test_first_and_second_derivative_pass_gradcheck(function):
    point = tuple(inputs().values())

    assert gradcheck(function.apply, point)
    assert gradgradcheck(function.apply, point)


@both_spellings
def test_gradients_are_the_published_formulas(function):
    x, y = (value.detach() for value in inputs().values())
    pulled = pull(function.apply, inputs())

    torch.testing.assert_close(pulled["gradient of `x`"], torch.exp(-y))
    torch.testing.assert_close(pulled["gradient of `y`"], -x * torch.exp(-y))


@both_spellings
def test_broadcast_inputs_get_their_own_shape(function):
    point = {
        "x": torch.randn(3, 1, dtype=torch.float64, requires_grad=True),
        "y": torch.randn(4, dtype=torch.float64, requires_grad=True),
    }

    assert worst_of(compare(function.apply, plain, point)).size < 1e-14


@both_spellings
def test_compiled_equals_eager(function):
    compiled = torch.compile(function.apply, backend="aot_eager", fullgraph=True)

    assert worst_of(compare(compiled, plain, inputs())).size < 1e-14


def test_unwanted_gradient_is_not_computed():
    x, y = inputs().values()
    output = MyElementWiseInCppNames.apply(x, y)
    returned = []
    output.grad_fn.register_hook(lambda gradients, _: returned.append(gradients))
    torch.autograd.grad(output.sum(), x)

    ((of_x, of_y),) = returned
    assert of_x is not None
    assert of_y is None
