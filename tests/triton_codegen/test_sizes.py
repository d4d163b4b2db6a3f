"""Sizes and strides, as the host reads them."""

from pullback.triton_codegen.grouping import merge_groups
from pullback.triton_codegen.plan import planned_kernels
from pullback.triton_codegen.sizes import Sizes, example_strides
from tests.triton_codegen.graphs import draw, names_in, parts_of


def sizes_of(program, *given):
    parts = parts_of(program, *given)
    plan = planned_kernels(parts.forward)
    merge_groups(plan, example_strides(plan))
    return plan, Sizes(plan, names_in(parts))


def test_sizes_are_read_from_the_first_tensor_that_has_them():
    plan, sizes = sizes_of(lambda x, b: x * b, draw(4, 8), draw(8))
    (kernel,) = plan.kernels

    assert sizes.of_groups(kernel.rows) == "x.shape[0]"
    assert sizes.of_groups(kernel.cols) == "x.shape[1]"


def test_merged_dimensions_have_the_stride_of_the_last():
    plan, sizes = sizes_of(lambda x: x * 2, draw(2, 3, 8))
    (kernel,), (x,) = plan.kernels, plan.inputs

    assert sizes.of_groups(kernel.rows) == "x.shape[0] * x.shape[1]"
    assert sizes.stride(x, kernel.rows[0]) == "x.stride(1)"
