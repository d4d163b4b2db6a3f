"""Memory around tensors is watched."""

import ctypes

import pytest
import torch

from pullback.check.kernels.guards import MANY, MemoryGuards, TooLongError


def written(tensor, place, number):
    """Write one element as a kernel would: by address."""
    address = tensor.data_ptr() + place * tensor.element_size()
    ctypes.c_float.from_address(address).value = number


@pytest.mark.parametrize("place", [6, -1])
def test_write_beside_a_tensor_is_seen(place):
    guards = MemoryGuards(lambda number: False)
    x = guards.put(torch.ones(2, 3), "`x`")

    written(x, place, 5.0)

    (touched,) = guards.touched()
    side = "behind the end" if place > 0 else "before the beginning"
    assert str(touched) == f"1 element {side} of `x`"
    assert touched.number == 5.0


def test_write_into_a_tensor_is_none_beside_it():
    guards = MemoryGuards(lambda number: True)
    x = guards.put(torch.ones(2, 3), "`x`")

    x.fill_(7.0)

    assert list(guards.touched()) == []


def test_what_pytorch_makes_lies_between_guards():
    guards = MemoryGuards(lambda number: False)
    with guards:
        y = torch.empty(4)
        z = y + 1
        view = z[1:]

    assert [one.what.partition(" at ")[0] for one in guards.made] == [
        "a tensor of shape [4] made by `empty`",
        "a tensor of shape [4] made by `add`",
    ]
    assert view.tolist() == [2.0, 2.0, 2.0]  # `empty` holds ones here
    written(z, 4, 3.0)
    assert [str(one).partition(" at ")[0] for one in guards.touched()] == [
        "1 element behind the end of a tensor of shape [4] made by `add`"
    ]


def test_copy_keeps_strides_dtype_and_grad():
    guards = MemoryGuards(lambda number: False)
    x = torch.arange(6.0).view(2, 3).t().requires_grad_()

    y = guards.put(x, "`x`")

    assert (y.stride(), y.requires_grad, y.is_leaf) == (x.stride(), True, True)
    assert torch.equal(y, x)
    assert y.data_ptr() % 64 == 0


@pytest.mark.parametrize(
    "tensor", [torch.ones(1).expand(3), torch.ones(0), torch.ones(3).to("meta")]
)
def test_what_cannot_lie_between_guards_stays(tensor):
    assert MemoryGuards(lambda number: False).put(tensor, "`x`") is tensor


def test_long_loop_is_not_watched_to_its_end():
    x = torch.ones(2)

    with pytest.raises(TooLongError), MemoryGuards(lambda number: False) as guards:
        for _ in range(10_000):
            x = x + 1

    assert len(guards.made) == MANY
