"""Ops that read elsewhere: the index at which their argument is read."""

import torch

from tests.triton_codegen.graphs import draw, kernels_of


def test_slices_are_read_where_they_stand():
    (kernel,) = kernels_of(lambda x: x[:, 2:] * 2, draw(4, 8))

    assert "(col + 2) * x_stride_1" in kernel.text


def test_reduction_inside_a_gather_goes_over_the_row():
    def picked(x, place):
        return (x - x.logsumexp(-1, keepdim=True)).gather(-1, place.unsqueeze(-1))

    (kernel,) = kernels_of(picked, draw(4, 8), torch.arange(4))

    assert kernel.text.count("tl.sum(") == 1
    assert "mask=in_rows & ((place >= 0) & (place < n_cols))" in kernel.text


def test_parts_that_are_joined_are_chosen_by_the_index():
    (kernel,) = kernels_of(lambda x, y: torch.cat([x, y], -1).sin(), draw(4, 8), draw(4, 3))

    assert "tl.where(col < " in kernel.text
    assert "(col - 8)" in kernel.text or "(col - size)" in kernel.text


def test_turned_rows_are_read_from_their_end():
    (kernel,) = kernels_of(lambda x: x.flip(-1) * 2, draw(4, 8))

    assert "- col) * x_stride_1" in kernel.text
