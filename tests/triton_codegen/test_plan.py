"""Plans: which goals share a kernel, which reductions are totals, and the form of a kernel."""

import pytest
import torch
import torch.nn.functional as F

from pullback.errors import KernelError
from pullback.triton_codegen.grouping import merge_groups
from pullback.triton_codegen.plan import planned_kernels
from pullback.triton_codegen.sizes import example_strides
from tests.triton_codegen.graphs import draw, parts_of


def plan_of(graph):
    plan = planned_kernels(graph)
    merge_groups(plan, example_strides(plan))
    return plan


def norm(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def test_backward_of_a_norm_is_one_kernel_and_its_sums():
    main, final = plan_of(parts_of(norm, draw(4, 8), draw(8)).backward).kernels

    assert main.has_reductions
    assert main.is_looped
    assert len(main.stores) == 1
    assert len(main.totals) == 1
    assert final.is_final
    assert final.source is main


def test_wide_rows_are_taken_one_at_a_time():
    narrow = plan_of(parts_of(norm, draw(4, 8), draw(8)).forward)
    wide = plan_of(parts_of(norm, draw(4, 2048), draw(2048)).forward)
    long = plan_of(parts_of(norm, draw(2, 40000), draw(40000)).forward)

    assert [plan.kernels[0].form for plan in (narrow, wide, long)] == ["tile", "row", "blocks"]


def test_loss_is_added_up_without_going_over_rows():
    main, final = plan_of(parts_of(F.cross_entropy, draw(4, 8), torch.arange(4)).forward).kernels

    assert main.totals
    assert not main.is_looped
    assert [store.output.meta["val"].dim() for store in final.stores] == [0, 0]


def test_parts_that_are_joined_are_stored_apart():
    def packed(x):
        a, b = x.chunk(2, -1)
        return a * b

    (kernel,) = plan_of(parts_of(packed, draw(4, 8)).backward).kernels

    assert [store.dim for store in kernel.stores] == [1, 1]


def test_sums_along_two_dimensions_are_refused():
    def twice(x):
        y = x - x.mean(0, keepdim=True)
        return y - y.mean(1, keepdim=True)

    with pytest.raises(KernelError, match="mean"):
        plan_of(parts_of(twice, draw(4, 6)).forward)
