"""Only what is analytic and not zero everywhere is zero on a set without volume."""

import pytest
import sympy

from pullback.prove.zero_sets import is_analytic, is_thin

x, y = sympy.symbols("x y", real=True)
p = sympy.Symbol("p", positive=True)


@pytest.mark.parametrize(
    "e",
    [
        x,
        x - y,
        x**2 + y**2,
        sympy.exp(x) - 2,
        1 / (1 + sympy.exp(x)) - y,
        sympy.log(p) - p,
        p**y - 2,
    ],
    ids=str,
)
def test_analytic_expression_is_thin(e):
    assert is_thin(e)


@pytest.mark.parametrize(
    "e",
    [
        sympy.floor(x),
        abs(x) - x,
        sympy.sqrt(x**2 + y) - y,
        sympy.atan(x) + sympy.atan(1 / x) - sympy.pi / 2,
        sympy.log(x),
        1 / x,
        sympy.Symbol("z"),
    ],
    ids=str,
)
def test_what_may_be_flat_is_not_analytic(e):
    assert not is_analytic(e)
    assert not is_thin(e)


def test_zero_everywhere_is_not_thin():
    e = sympy.sin(x) ** 2 + sympy.cos(x) ** 2 - 1

    assert is_analytic(e)
    assert not is_thin(e)
