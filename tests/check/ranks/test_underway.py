"""Memory that a collective is under way in, and what comes there too early."""

import pytest
import torch

from pullback.check.ranks.underway import too_early, underway

aten = torch.ops.aten


@pytest.fixture
def rows():
    return torch.zeros(4, 3)


def test_what_is_received_may_not_be_read(rows):
    received = underway([rows[:2]], [])

    assert too_early(aten.mm.default, (rows, torch.zeros(3, 2)), None, received) == "reads"
    assert too_early(aten.add.Tensor, (rows[2:], rows[2:]), None, received) == ""


def test_what_is_sent_may_be_read_and_not_written(rows):
    sent = underway([], [rows])

    assert too_early(aten.mul.Tensor, (rows, rows), None, sent) == ""
    assert too_early(aten.zero_.default, (rows[3],), None, sent) == "writes"


def test_shapes_and_views_are_no_numbers(rows):
    received = underway([rows], [])

    assert too_early(aten.empty_like.default, (rows,), None, received) == ""
    assert too_early(aten.view.default, (rows, [12]), None, received) == ""


def test_strided_tensor_beside_what_is_received_is_none_of_it():
    square = torch.zeros(4, 4)
    received = underway([square[1, 1:3]], [])

    assert too_early(aten.sum.default, (square[:, 0],), None, received) == ""
    assert too_early(aten.sum.default, (square[:, 1],), None, received) == "reads"
