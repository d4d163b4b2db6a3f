"""`MyFunction` changes its input in place, says so, and its gradient is right."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from examples.compare import compare, worst_of
from examples.my_function import (
    FACTOR,
    MyFunction,
    MyFunctionInPythonNames,
    in_place,
    inputs,
    plain,
)

both_spellings = pytest.mark.parametrize("function", [MyFunction, MyFunctionInPythonNames])


def copy():
    """A tensor that requires grad and may be changed, as it is no leaf."""
    return inputs()["x"].clone()


@both_spellings
def test_equals_plain_pytorch_and_its_derivative(function):
    differences = compare(lambda x: function.apply(x.clone(), FACTOR), plain, inputs())

    assert worst_of(differences).size == 0


@both_spellings
def test_first_and_second_derivative_pass_gradcheck(function):
    point = tuple(inputs().values())

    assert gradcheck(lambda x: function.apply(x.clone(), 5), point)
    assert gradgradcheck(lambda x: function.apply(x.clone(), 5), point)


@both_spellings
def test_output_is_the_input_tensor(function):
    x = copy()
    old = x.detach().clone()
    output = function.apply(x, 4)

    assert output is x
    assert output.tolist() == (4 * old).tolist()
    assert type(x.grad_fn).__name__ == f"{function.__name__}Backward"


@both_spellings
def test_version_of_the_input_goes_up(function):
    x = copy()
    before = x._version
    function.apply(x, 4)

    assert x._version > before


@both_spellings
def test_earlier_save_of_the_input_is_refused(function):
    x = copy()
    square = x**2
    function.apply(x, 4)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


@both_spellings
def test_leaf_that_requires_grad_is_refused(function):
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        function.apply(inputs()["x"], 4)


@both_spellings
def test_calls_in_a_row_multiply_up(function):
    leaf = inputs()["x"]
    x = leaf.clone()
    for factor in (2, 3, 7):
        function.apply(x, factor)
    (gradient,) = torch.autograd.grad(x.sum(), leaf)

    assert gradient.tolist() == [42.0] * 5


def test_integer_is_kept_in_saved_data():
    output = in_place(inputs()["x"])

    assert output.grad_fn.saved_data["n"] == FACTOR


@both_spellings
def test_both_are_traceable(function):
    assert function.is_traceable is True


@both_spellings
@pytest.mark.parametrize("n", [3, -2])
def test_compiled_equals_eager(function, n):
    compiled = torch.compile(
        lambda x: function.apply(x.clone(), n), backend="aot_eager", fullgraph=True
    )

    assert worst_of(compare(compiled, lambda x: n * x, inputs())).size == 0
