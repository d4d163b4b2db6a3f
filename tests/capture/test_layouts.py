"""Tensors that are laid out like others, in the order of their dimensions in memory."""

import torch

from pullback.capture.layouts import Layout, in_memory_order, in_order_of, memory_order

GRID = torch.arange(1.0, 7.0).reshape(2, 3)


def test_copy_of_a_slice_has_its_strides():
    column = GRID.expand(2, 2, 3)[..., 1]
    slice_ = torch.arange(12.0).reshape(3, 4)[:, ::2]

    assert Layout.copy_of(slice_).stride() == (4, 2)
    assert torch.equal(Layout.copy_of(slice_), slice_)
    assert Layout.of(column).overlaps
    assert not Layout.of(slice_).overlaps


def test_order_in_memory_is_kept():
    values = torch.ones(4, 5, requires_grad=True)
    laid_out = in_order_of(GRID.t(), values)

    assert (laid_out.shape, laid_out.stride()) == ((4, 5), (1, 4))
    assert laid_out.is_leaf
    assert not laid_out.requires_grad


def test_copy_lies_in_memory_in_the_order_of_strides():
    copy = in_memory_order(GRID, (1, 2))

    assert memory_order((1, 2)) == [1, 0]
    assert torch.equal(copy, GRID)
    assert copy.stride() == (1, 2)
    assert in_memory_order(GRID.t(), (2, 1)).is_contiguous()
