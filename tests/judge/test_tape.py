"""What a call computes is told from the ops it ran; what a kernel of its own computes is not."""

import pytest
import torch

from pullback.judge.tape import OpaqueError, has_native_node, replayed

X = torch.linspace(-1, 2, 6, dtype=torch.float64).reshape(2, 3)


def in_place(x):
    y = x.clone()
    y[0] = y[1] * 2
    return y.mul_(x), (x > 0).sum()


def noisy(x):
    return x * torch.rand_like(x)


@pytest.mark.parametrize("call", [torch.sigmoid, noisy, lambda x: x.t() @ x])
def test_replayed_call_is_differentiable(call):
    x = X.clone().requires_grad_()

    out = replayed(call, (x,))

    (got,) = torch.autograd.grad(out.sum(), x)
    torch.manual_seed(20_250_101)
    (expected,) = torch.autograd.grad(call(x).sum(), x)
    assert torch.allclose(got, expected)


def test_writes_and_several_outputs_are_replayed():
    x = X.clone().requires_grad_()

    out, count = replayed(in_place, (x,))

    (got,) = torch.autograd.grad(out.sum(), x)
    (expected,) = torch.autograd.grad(in_place(x)[0].sum(), x)
    assert torch.equal(got, expected)
    assert count == (X > 0).sum()


def written_unseen(x):
    y = torch.zeros_like(x)
    y.numpy()[:] = x.numpy() * 2
    return y


def test_kernel_of_its_own_is_opaque():
    with pytest.raises(OpaqueError, match="a kernel of its own"):
        replayed(written_unseen, (X,))


def test_output_made_by_no_op_is_opaque():
    made = torch.ones(2)

    with pytest.raises(OpaqueError, match="made by no op"):
        replayed(lambda x: made, (X,))


def test_op_of_somebody_else_is_opaque():
    @torch.library.custom_op("pullback_tests::tape_twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    with pytest.raises(OpaqueError, match=r"tape_twice.default` is no op of PyTorch"):
        replayed(twice, (X,))


def test_nodes_of_pytorch_are_not_native():
    x = X.clone().requires_grad_()

    assert not has_native_node([(x * x).sum(), x])
