"""`SquareFunction` and `SineFunction` are right alone, and one after the other."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from examples.compare import compare, worst_of
from examples.nested import SineFunction, SquareFunction, inputs, nested, plain

PAIRS = {
    "square": (SquareFunction.apply, lambda x: x**2),
    "sine": (SineFunction.apply, torch.sin),
    "nested": (nested, plain),
    "nested the other way": (
        lambda x: SquareFunction.apply(SineFunction.apply(x)),
        lambda x: torch.sin(x) ** 2,
    ),
}
each_pair = pytest.mark.parametrize("name", PAIRS)


@each_pair
def test_equals_plain_pytorch_and_its_derivative(name):
    apply, in_torch = PAIRS[name]

    assert worst_of(compare(apply, in_torch, inputs())).size < 1e-14


@each_pair
def test_first_and_second_derivative_pass_gradcheck(name):
    apply, _ = PAIRS[name]
    point = tuple(inputs().values())

    assert gradcheck(apply, point)
    assert gradgradcheck(apply, point)


def test_nested_leaves_two_nodes():
    output = nested(*inputs().values())
    outer = output.grad_fn
    inner = outer.next_functions[0][0]

    assert type(outer).__name__ == "SineFunctionBackward"
    assert type(inner).__name__ == "SquareFunctionBackward"


def test_compiled_equals_eager():
    compiled = torch.compile(nested, backend="aot_eager", fullgraph=True)

    assert worst_of(compare(compiled, plain, inputs())).size < 1e-14
