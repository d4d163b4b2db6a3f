"""Which axes one index serves."""

import torch

from pullback.triton_codegen.grouping import merge_groups
from pullback.triton_codegen.plan import planned_kernels
from pullback.triton_codegen.sizes import example_strides
from tests.triton_codegen.graphs import draw, parts_of


def rows_of(program, *given):
    plan = planned_kernels(parts_of(program, *given).forward)
    merge_groups(plan, example_strides(plan))
    return [[int(leaf.size) for leaf in group.leaves] for group in plan.kernels[0].rows]


def test_contiguous_rows_are_merged():
    assert rows_of(torch.sin, draw(2, 3, 8)) == [[2, 3]]


def test_rows_that_do_not_lie_together_stay_apart():
    apart = torch.randn(2, 5, 8)[:, :3].requires_grad_()

    assert rows_of(torch.sin, apart) == [[2], [3]]


def test_rows_that_are_cut_stay_apart():
    assert rows_of(lambda x: x[:, 1:] * 2, draw(2, 3, 8)) == [[2], [2]]
