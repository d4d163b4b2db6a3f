"""`ComplexFunction` calls two Functions in its forward, and its own backward is right."""

import torch
from torch.autograd import gradcheck, gradgradcheck

from examples.compare import compare, worst_of
from examples.hybrid import ComplexFunction, inputs, plain


def test_equals_plain_pytorch_and_its_derivative():
    differences = compare(ComplexFunction.apply, plain, inputs())

    assert [d.what for d in differences] == ["output", "gradient of `x`", "gradient of `y`"]
    assert worst_of(differences).size < 1e-14


def test_first_and_second_derivative_pass_gradcheck():
    point = tuple(inputs().values())

    assert gradcheck(ComplexFunction.apply, point)
    assert gradgradcheck(ComplexFunction.apply, point)


def test_broadcast_inputs_get_their_own_shape():
    point = {
        "x": torch.randn(3, 1, dtype=torch.float64, requires_grad=True),
        "y": torch.randn(4, dtype=torch.float64, requires_grad=True),
    }

    assert worst_of(compare(ComplexFunction.apply, plain, point)).size < 1e-14


def test_inner_functions_leave_no_node():
    x, y = inputs().values()
    output = ComplexFunction.apply(x, y)
    node = output.grad_fn

    assert type(node).__name__ == "ComplexFunctionBackward"
    assert [type(after).__name__ for after, _ in node.next_functions] == ["AccumulateGrad"] * 2


def test_compiled_equals_eager():
    compiled = torch.compile(ComplexFunction.apply, backend="aot_eager", fullgraph=True)

    assert worst_of(compare(compiled, plain, inputs())).size < 1e-14
