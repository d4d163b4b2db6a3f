"""Values of expressions at points, where they are defined; and the points."""

import random
from fractions import Fraction

import pytest

from pullback.prove import scalars as s
from pullback.prove.numerics import Undefined, Values, drawn_points, fraction_between
from pullback.prove.scalars import case, known_number, variable

X, Y = variable("x"), variable("y")


def value(scalar, x, digits=50):
    return Values({X: Fraction(x)}, digits)(scalar)


def test_value_has_all_digits():
    root = value(X ** Fraction(1, 2), 2)

    assert abs(root * root - 2) < 1e-48


def test_only_the_chosen_case_is_computed():
    masked = case(X, known_number(0), known_number(0), s.log(X))

    assert value(masked, -1) == 0


def test_chosen_cases_are_remembered():
    masked = case(X, known_number(0), known_number(0), X)
    values = Values({X: Fraction(3)}, 50)
    values(masked)

    assert values.signs == {masked: 1}


@pytest.mark.parametrize(
    ("scalar", "x", "is_outside"),
    [
        (1 / X, 0, False),
        (s.log(X), 0, False),
        (s.log(X), -1, True),
        (X ** Fraction(1, 2), -1, True),
        (X ** known_number(-1), 0, False),
        (s.asin(X), 2, True),
        (s.atanh(X), -2, True),
        (s.lgamma(X), -1, False),
        (0 * s.log(X), -1, True),
        (s.exp(s.exp(X)), 100, False),
        (X ** known_number(10**9), 2, False),
    ],
)
def test_undefined_value_is_told(scalar, x, is_outside):
    with pytest.raises(Undefined) as error:
        value(scalar, x)

    assert error.value.is_outside == is_outside


def test_sign_of_noise_is_not_told():
    one = s.sin(X) * s.sin(X) + s.cos(X) * s.cos(X)

    with pytest.raises(Undefined, match="sign"):
        value(case(one - 1 + known_number(Fraction(1, 10**40)), X, X, -X), 1)


def test_points_are_the_same_every_time():
    first, second = (list(drawn_points([X, Y], {}, [X + 7], 2)) for _ in range(2))

    assert first == second


def test_points_are_exact_in_floats():
    points = list(drawn_points([X, Y], {X: Fraction(1, 3)}, [X + Fraction(1, 3)], 2))

    assert all(Fraction(float(v)) == v for point in points for v in point.values())


def test_points_lie_around_numbers_that_occur():
    points = list(drawn_points([X], {}, [s.greater(X, known_number(700))], 20))

    assert any(700 < point[X] < 702 for point in points)
    assert any(698 < point[X] < 700 for point in points)


def test_points_lie_around_examples():
    points = list(drawn_points([X], {X: Fraction(5000)}, [], 1))

    assert any(4999 < point[X] < 5001 for point in points)


def test_number_between_is_never_an_end():
    rng = random.Random(0)
    numbers = [fraction_between(rng, 0, 1) for _ in range(1000)]

    assert all(0 < n < 1 for n in numbers)
