"""Launches: what is made, with which grid, and copies of what lies otherwise."""

import torch

from pullback.triton_codegen.host import phase_text
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
