"""Bodies: blocks of a row, online sums of exponentials, totals and their small kernel."""

import torch
import torch.nn.functional as F

from tests.triton_codegen.graphs import draw
from tests.triton_codegen.test_writer import kernels_of


def test_long_softmax_goes_over_a_row_twice():
    (kernel,) = kernels_of(lambda x: torch.softmax(x, -1), draw(2, 40000))

    assert kernel.text.count("for start in range(0, n_cols, BLOCK):") == 2
    assert "total = total * " in kernel.text or "sum_e = sum_e * tl.exp(" in kernel.text


def test_totals_of_columns_are_kept_in_registers():
    main, final = kernels_of(lambda x, b: torch.sin(x + b), draw(4, 8), draw(8), phase="backward")

    assert "grad_b_sum += " in main.text
    assert "atomic" not in main.text
    assert "for start in range(0, n_parts, PARTS):" in final.text


def test_means_are_divided_by_what_they_go_over():
    _, final = kernels_of(lambda x: (x * x).mean(), draw(4, 8))

    assert ("count", "x.shape[0] * x.shape[1]") in [(p.name, p.given) for p in final.params]


def test_rows_past_the_end_add_nothing():
    main, _ = kernels_of(F.cross_entropy, draw(4, 8), torch.arange(4))

    assert "tl.where(in_rows, " in main.text


def test_gradient_of_a_bias_alone_has_its_mask():
    main, _ = kernels_of(lambda x, b: x + b, draw(4, 8), draw(8), phase="backward")

    assert "mask=in_cols" in main.text
    assert "in_cols = col < n_cols" in main.text
