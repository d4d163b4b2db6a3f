"""`MyReLU` is `torch.relu`, in reverse mode, forward mode, and under the transforms."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from examples.compare import compare, worst_of
from examples.my_relu import MyReLU, inputs, plain

# Away from the corner, where a finite difference has no meaning.
SMOOTH = torch.tensor([-2.0, -0.5, 0.5, 3.0], dtype=torch.float64)


def test_equals_plain_pytorch_and_its_derivative():
    differences = compare(MyReLU.apply, plain, inputs())

    assert 0 in inputs()["x"]
    assert worst_of(differences).size == 0


def test_first_and_second_derivative_pass_gradcheck():
    point = (SMOOTH.clone().requires_grad_(),)

    assert gradcheck(MyReLU.apply, point, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(MyReLU.apply, point)


def test_forward_mode_equals_relu():
    point, direction = (inputs()["x"].detach(),), (torch.arange(5.0, dtype=torch.float64),)
    got = torch.func.jvp(MyReLU.apply, point, direction)
    expected = torch.func.jvp(torch.relu, point, direction)

    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd])
def test_jacobian_is_the_diagonal_mask(transform):
    jacobian = transform(MyReLU.apply)(SMOOTH)

    assert jacobian.tolist() == torch.diag((SMOOTH > 0).double()).tolist()


def test_batched_gradient_equals_one_by_one():
    batch = torch.stack([SMOOTH, -SMOOTH])
    gradients = torch.func.vmap(torch.func.grad(lambda x: MyReLU.apply(x).sum()))(batch)

    assert gradients.tolist() == (batch > 0).double().tolist()


def test_infinite_cotangent_stays_out():
    x = inputs()["x"]
    (gradient,) = torch.autograd.grad(MyReLU.apply(x), x, torch.full((5,), torch.inf).double())

    assert gradient.tolist() == [0, 0, 0, torch.inf, torch.inf]


def test_not_a_number_passes_as_in_relu():
    x = torch.tensor([float("nan"), -1.0], requires_grad=True)
    got = torch.autograd.grad(MyReLU.apply(x).sum(), x)
    expected = torch.autograd.grad(torch.relu(x).sum(), x)

    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def test_output_is_saved_not_the_input():
    x = inputs()["x"]
    output = MyReLU.apply(x)
    (saved,) = output.grad_fn.saved_tensors

    assert saved.data_ptr() == output.data_ptr()


def test_compiled_equals_eager():
    # Not fullgraph: Dynamo leaves a Function with a `jvp` to eager.
    compiled = torch.compile(MyReLU.apply, backend="aot_eager")

    assert worst_of(compare(compiled, plain, inputs())).size == 0
