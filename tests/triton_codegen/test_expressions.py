"""The table of expressions: texts, parentheses, and what is zero past the end of a row."""

import pytest
import torch

from pullback.triton_codegen import expressions
from pullback.triton_codegen.expressions import (
    KernelText,
    add,
    clamp_text,
    div,
    literal_text,
    mul,
    number_text,
    power_text,
    sub,
)

A, B, C = (KernelText(name, is_zero=True) for name in "abc")


def test_parentheses_keep_the_order_of_rounding():
    assert mul(A, add(B, C)).text == "a * (b + c)"
    assert add(A, add(B, C)).text == "a + (b + c)"
    assert add(add(A, B), C).text == "a + b + c"
    assert div(A, mul(B, C)).text == "a / (b * c)"
    assert sub(A, sub(B, C)).text == "a - (b - c)"


def test_small_powers_are_products():
    assert power_text(A, 2).text == "a * a"
    assert power_text(A, -1).text == "1.0 / a"
    assert power_text(A, 0.5).text == "tl.sqrt(a)"
    assert power_text(A, 2.5).text == "power(a, 2.5)"


def test_clamp_has_the_bounds_it_is_given():
    nan = "propagate_nan=tl.PropagateNan.ALL"

    assert clamp_text(A, min=B).text == f"tl.maximum(a, b, {nan})"
    assert clamp_text(A, max=C).text == f"tl.minimum(a, c, {nan})"
    assert clamp_text(A, B, C).text == f"tl.minimum(tl.maximum(a, b, {nan}), c, {nan})"


def test_products_of_zeros_alone_are_zero():
    one = literal_text(1.0)

    assert mul(A, B).is_zero
    assert add(A, B).is_zero
    assert not mul(A, one).is_zero  # infinity times zero is NaN
    assert not expressions.call_source("tl.exp")(A).is_zero


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "True"), (3, "3"), (float("inf"), 'float("inf")'), (float("nan"), 'float("nan")')],
)
def test_numbers_are_written_as_triton_reads_them(value, text):
    assert number_text(value) == text


def test_share_of_the_normal_distribution_is_exact_enough():
    """The constants of `normal_share`, computed in double precision."""
    x = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    t = 1 / (1 + 0.3 * x.abs())
    tail = 0.153760563 + t * (-0.0340541596 + t * (0.230599904 + t * -0.0818416942))
    tail = torch.exp(x * x * -0.5) * t * (0.120328002 + t * (0.111207857 + t * tail))
    got = torch.where(x < 0, tail, 1 - tail)

    assert ((got - torch.special.ndtr(x)) / torch.special.ndtr(x)).abs().max() < 4e-6
