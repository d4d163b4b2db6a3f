"""Running loops over rows."""

import pytest
import torch

from pullback.compose.rows.loops import add_product


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_products_are_added_up_in_place(dtype):
    sums = {}
    a, b = torch.randn(4, 3).to(dtype), torch.randn(3, 5).to(dtype)
    add_product(sums, "w", a, b)
    held = sums["w"]
    add_product(sums, "w", a, b)
    assert sums["w"] is held
    assert held.dtype is (torch.float32 if dtype is torch.bfloat16 else dtype)
    torch.testing.assert_close(held.double(), 2 * a.double() @ b.double(), rtol=1e-5, atol=1e-5)


def test_halves_are_not_rounded_on_the_way():
    sums = {}
    one, small = torch.ones(1, 1).bfloat16(), torch.full((1, 1), 2.0**-10).bfloat16()
    add_product(sums, "w", one, one)
    for _ in range(4):
        add_product(sums, "w", one, small)
    assert sums["w"].item() == 1 + 4 * 2.0**-10
