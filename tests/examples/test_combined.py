"""`CombinedFunction` is x**2 + sin(y), with the derivative PyTorch gives, as one node."""

import torch
from torch.autograd import gradcheck, gradgradcheck

from examples.combined import CombinedFunction, inputs, plain
from examples.compare import compare, worst_of


def test_equals_plain_pytorch_and_its_derivative():
    differences = compare(CombinedFunction.apply, plain, inputs())

    assert [d.what for d in differences] == ["output", "gradient of `x`", "gradient of `y`"]
    assert worst_of(differences).size < 1e-14


def test_first_and_second_derivative_pass_gradcheck():
    point = tuple(inputs().values())

    assert gradcheck(CombinedFunction.apply, point)
    assert gradgradcheck(CombinedFunction.apply, point)


def test_broadcast_inputs_get_their_own_shape():
    point = {
        "x": torch.randn(3, 1, dtype=torch.float64, requires_grad=True),
        "y": torch.randn(4, dtype=torch.float64, requires_grad=True),
    }

    assert worst_of(compare(CombinedFunction.apply, plain, point)).size < 1e-14


def test_it_is_one_node():
    x, y = inputs().values()
    output = CombinedFunction.apply(x, y)
    node = output.grad_fn

    assert type(node).__name__ == "CombinedFunctionBackward"
    assert [id(after.variable) for after, _ in node.next_functions] == [id(x), id(y)]


def test_compiled_equals_eager():
    compiled = torch.compile(CombinedFunction.apply, backend="aot_eager", fullgraph=True)

    assert worst_of(compare(compiled, plain, inputs())).size < 1e-14
