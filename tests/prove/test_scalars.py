"""Expressions of unknown numbers: what is simplified, what is not, and what is read off them."""

import gc
import math
from fractions import Fraction

import pytest

from pullback.prove import scalars as s
from pullback.prove.numerics import Values
from pullback.prove.scalars import Outside, case, coefficients, form_of, known_number, variable

X, Y, G, H = (variable(name) for name in "xygh")


def test_equal_expressions_are_one_object():
    assert s.exp(X * Y) + 1 is s.exp(X * Y) + 1


def test_forgotten_expressions_are_freed():
    before = len(s._known)
    made = [s.sin(X * n) for n in range(100, 200)]
    assert len(s._known) > before
    del made
    gc.collect()

    assert len(s._known) <= before


@pytest.mark.parametrize(
    ("simple", "expected"),
    [
        (X + 0, X),
        (X * 1, X),
        (2 * (3 * X), 6 * X),
        (X / 4, known_number(Fraction(1, 4)) * X),
        (X**1, X),
        (X**0, known_number(1)),
        (known_number(2) * known_number(3) - 1, known_number(5)),
        (case(known_number(-2), X, Y, G), X),
        (case(known_number(0), X, Y, G), Y),
        (case(X, Y, Y, Y), Y),
        (s.select(s.greater(X, known_number(0)), G, H), case(X, H, H, G)),
    ],
)
def test_what_is_always_equal_is_simplified(simple, expected):
    assert simple is expected


@pytest.mark.parametrize("kept", [0 * (1 / X), X / X, X - X, s.log(X) * 0], ids=repr)
def test_what_may_be_undefined_is_kept(kept):
    assert kept.kind != "number"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, Fraction(1, 10)),
        (1 / 3, Fraction(1, 3)),
        (0.044715 * 3, Fraction(134145, 10**6)),
        (1e-5, Fraction(1, 10**5)),
        (-2.5, Fraction(-5, 2)),
        (1.6732632423543772, Fraction("1.6732632423543772")),
    ],
)
def test_float_stands_for_simplest_fraction(value, expected):
    assert known_number(value) is known_number(expected)


@pytest.mark.parametrize(
    "value",
    [math.pi, math.sqrt(2 / math.pi), 1 / math.sqrt(2), 0.5 * math.sqrt(3), 3 / math.log(2)],
)
def test_float_stands_for_a_known_constant(value):
    scalar = known_number(value)

    assert scalar.kind == "mul" or scalar.kind == "pi"
    assert float(Values({}, 30)(scalar)) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_infinite_number_is_outside(value):
    with pytest.raises(Outside, match=f"the number {value}"):
        known_number(value)


# ---- coefficients ----


def of_both(scalar):
    return coefficients(scalar, frozenset([G, H]))


def test_coefficients_of_a_linear_sum():
    assert of_both(G * X + H / Y - 2 * G) == {G: X - 2, H: 1 / Y}


def test_coefficients_of_cases():
    assert of_both(case(X, known_number(0), 2 * G, G)) == {
        G: case(X, known_number(0), known_number(2), known_number(1))
    }


@pytest.mark.parametrize(
    "scalar",
    [G * H, X + G, X / G, s.exp(G), case(G, G, G, H), case(X, G, G, known_number(1))],
    ids=repr,
)
def test_what_is_not_linear_has_none(scalar):
    assert of_both(scalar) is None


def test_nothing_has_no_coefficients():
    assert of_both(known_number(0)) == {}


# ---- forms ----


def test_form_forgets_names():
    assert form_of(X * X + Y) == form_of(G * G + H)


@pytest.mark.parametrize("other", [X * Y + Y, X * X - Y, X * X + 2, X * X + X], ids=repr)
def test_form_keeps_everything_else(other):
    assert form_of(X * X + Y) != form_of(other)


def test_form_keeps_which_is_which():
    assert form_of(X, Y) != form_of(X, X)
    assert form_of(X, X * Y) == form_of(Y, Y * X)
