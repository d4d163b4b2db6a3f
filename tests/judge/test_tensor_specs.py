"""What is remembered of example tensors: enough to draw such again, and not the tensors."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from pullback.derive.backward import derive_function
from pullback.judge.tensor_specs import (
    KEPT_ELEMENTS,
    drawn_like,
    tensor_spec_of,
    tensor_spec_of_leaf,
    tensor_specs_of,
)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.linspace(-3, 2, 200),
        torch.linspace(-3, 2, 200, dtype=torch.float64).reshape(20, 10),
        torch.linspace(-3, 2, 200).half(),
        torch.arange(200),
        torch.arange(200) % 2 == 0,
        torch.randn(100, dtype=torch.complex64),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_drawn_tensor_is_like_the_first(tensor):
    like = tensor_spec_of(tensor)
    again = drawn_like(like)

    assert (again.shape, again.dtype) == (tensor.shape, tensor.dtype)
    assert like.values is None
    numbers = torch.view_as_real(again) if again.is_complex() else again
    assert like.low <= float(numbers.double().min())
    assert float(numbers.double().max()) <= like.high


def test_few_values_are_kept_as_they_are():
    tensor = torch.randn(KEPT_ELEMENTS)

    assert torch.equal(drawn_like(tensor_spec_of(tensor)), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randperm(300).reshape(30, 10),
        torch.randint(-(2**40), 2**40, (100,)),
        torch.randint(0, 255, (100,), dtype=torch.uint8),
        torch.rand(100) > 0.5,
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_integers_are_never_invented(tensor):
    like = tensor_spec_of(tensor)
    again = drawn_like(like, 3)

    assert again.dtype is tensor.dtype
    assert torch.equal(again, tensor)
    assert like.sample.data_ptr() != tensor.data_ptr()


def test_integers_of_another_shape_are_cropped_or_repeated():
    like = tensor_spec_of(torch.tensor([[5, 7, 9], [1, 2, 3]]))

    again = drawn_like(replace(like, shape=(3, 2), values=None))

    assert again.tolist() == [[5, 7], [1, 2], [5, 7]]
    assert drawn_like(replace(like, shape=(2,), values=None)).tolist() == [5, 5]
    assert drawn_like(replace(like, shape=(), values=None)).item() == 5


@pytest.mark.parametrize("shape", [(), (2, 1)], ids=str)
def test_integers_of_an_empty_example_are_zeros_elsewhere(shape):
    like = replace(tensor_spec_of(torch.empty(0, 3, dtype=torch.int64)), shape=shape, values=None)

    assert not drawn_like(like).any()


def test_seed_decides_what_is_drawn():
    like = tensor_spec_of(torch.linspace(0, 1, KEPT_ELEMENTS + 1))

    assert torch.equal(drawn_like(like, 1), drawn_like(like, 1))
    assert not torch.equal(drawn_like(like, 1), drawn_like(like, 2))


def test_infinite_values_do_not_count():
    tensor = torch.tensor([1.0, float("inf"), float("nan"), -2.0])

    assert (tensor_spec_of(tensor).low, tensor_spec_of(tensor).high) == (-2.0, 1.0)


@pytest.mark.parametrize(
    "tensor", [torch.empty(0, 3), torch.empty(2, device="meta"), torch.eye(2).to_sparse()], ids=repr
)
def test_tensor_without_values_has_a_range(tensor):
    like = tensor_spec_of(tensor)

    assert (like.low, like.high, like.shape) == (-1.0, 1.0, tuple(tensor.shape))


def test_containers_are_looked_into():
    assert [like.shape for like in tensor_specs_of(([torch.ones(2)], {"w": torch.ones(3)}, 4))] == [
        (2,),
        (3,),
    ]
    assert tensor_spec_of_leaf(4) == 4


def test_derived_class_lets_examples_go():
    x = torch.randn(1000)
    derived = derive_function(torch.sin, x)
    ref = weakref.ref(x)
    del x
    gc.collect()

    assert ref() is None
    assert derived._pb_derived.specs[0].shape == (1000,)


def test_large_example_is_remembered_by_a_corner():
    tensor = torch.arange(40_000.0).reshape(4, 10_000)
    sample = tensor_spec_of(tensor).sample

    assert torch.equal(sample, tensor[:, :2500])
