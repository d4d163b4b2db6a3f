"""Launches: what is made, with which grid, and copies of what lies otherwise."""

from types import SimpleNamespace

import pytest
import torch

from pullback.triton_codegen.host import COMMON, phase_text
from tests.triton_codegen.graphs import draw, names_in, parts_of


def phase_of(program, *given, phase="forward"):
    parts = parts_of(program, *given)
    return phase_text(getattr(parts, phase), phase, names_in(parts))


def test_outputs_are_made_with_the_layout_of_the_program():
    turned = draw(6, 4).t().detach()

    assert "torch.empty_permuted(" in "\n".join(phase_of(torch.sin, turned).lines)
    assert "torch.empty(" in "\n".join(phase_of(torch.sin, draw(4, 6)).lines)


def test_merged_dimensions_are_copied_where_they_do_not_lie_together():
    lines = phase_of(torch.sin, draw(2, 3, 8)).lines

    assert any(line.endswith(".contiguous()") for line in lines)


def test_sums_run_as_many_programs_as_the_device():
    phase = phase_of(lambda x, b: (x + b) ** 2, draw(4, 8), draw(8), phase="backward")

    assert any("programs_of(" in line for line in phase.lines)
    assert phase.made == ("grad_x", "grad_b")


def test_dimensions_of_one_axis_have_one_key():
    x, b = phase_of(lambda x, b: x + b, draw(4, 8), draw(8)).shapes

    assert x[1] == b[0] != x[0]


def test_totals_of_one_quotient_have_two_names():
    def mean_of_counted(x, t):
        return (x * (t > 0)).sum() / (t > 0).sum()

    lines = phase_of(mean_of_counted, draw(5), torch.arange(5)).lines
    made = [line.split(" = ")[0] for line in lines if "_parts = torch.empty" in line]

    assert len(made) == len(set(made)) == 2


@pytest.mark.parametrize("name", ["tile", "row_tile"])
def test_programs_are_counted_where_there_are_no_columns(name):
    space = {"triton": SimpleNamespace(next_power_of_2=lambda n: n and 1 << (n - 1).bit_length())}
    exec(COMMON[name], space)

    assert space[name](0) == (2048, 1)
