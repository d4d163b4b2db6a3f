"""Two expressions are compared case by case; what is shown, and where, is said."""

import math
import time
from fractions import Fraction

import pytest

from pullback.prove import compare as module
from pullback.prove import scalars as s
from pullback.prove.compare import NotShown, ShownEqual
from pullback.prove.scalars import case, greater, known_number, select, variable

X, Y, Z = (variable(name) for name in "xyz")
ZERO, ONE = known_number(0), known_number(1)


def compare(hand, derived, *domain, seconds=60):
    return module.compare_expressions(hand, derived, time.process_time() + seconds, domain)


def provisos(hand, derived, *domain):
    outcome = compare(hand, derived, *domain)
    assert isinstance(outcome, ShownEqual), outcome
    return outcome.provisos


def relu(x):
    return case(x, ZERO, ZERO, x)


# ---- cases ----


@pytest.mark.parametrize(
    ("hand", "derived"),
    [
        (X * X - Y * Y, (X - Y) * (X + Y)),
        (relu(X) - relu(-X), X),
        (s.larger(X, Y) + case(X - Y, X, X, Y), X + Y),
        (select(greater(relu(X), ZERO), X, ZERO), relu(X)),
        (s.larger(s.larger(X, Y), Z), s.larger(X, s.larger(Y, Z))),
        (case(X * s.exp(Y), -X, ZERO, X), case(X, -X, ZERO, X)),
        (case(2 - 2 * X, ZERO, ZERO, ONE), case(X - 1, ONE, ZERO, ZERO)),
        (case(s.exp(X) - 1, X, X, ZERO), case(X, X, X, ZERO)),
        (case(X * X + 1, ZERO, ZERO, Y), Y),
        (case(X * X - 1, X, X, -X), case(1 - X * X, -X, X, X)),
    ],
    ids=lambda scalar: scalar.kind,
)
def test_equal_cases_are_shown_without_provisos(hand, derived):
    assert provisos(hand, derived) == ()


@pytest.mark.parametrize(
    ("hand", "derived"),
    [(s.log(X * X * X), 3 * s.log(X)), (s.log(X * X), 2 * s.log(X))],
    ids=["odd power", "even power"],
)
def test_equality_of_logarithms_is_shown_where_they_are_defined(hand, derived):
    assert isinstance(compare(hand, derived), ShownEqual)


def test_even_power_is_positive_but_for_zero():
    logarithm = s.log(X * X)

    assert provisos(logarithm, logarithm * X / X) == ()  # both need that x is not zero


def test_difference_in_one_case_is_left_open():
    outcome = compare(case(X, -X, ZERO, X), case(X, -2 * X, ZERO, X))

    assert isinstance(outcome, NotShown)
    assert outcome.reason == "no way found to show that both are equal where x < 0"


def test_points_of_an_open_region_lie_in_it():
    outcome = compare(select(greater(X, Y + 5), X, Y), Y)
    point = outcome.region.point(positive=lambda: 2, real=lambda: -3)

    assert point[X] > point[Y] + 5


@pytest.mark.parametrize(
    ("hand", "derived", "proviso"),
    [
        (case(X, ZERO, ONE, ONE), greater(X, ZERO), "not shown where x = 0"),
        (case(X - 2, ZERO, ONE, ONE), greater(X, known_number(2)), "not shown where x = 2"),
        (case(X - Y, ZERO, ONE, ONE), greater(X, Y), "not shown where x = y"),
        (case(-3 - X, ZERO, ONE, ONE), greater(known_number(-3), X), "not shown where x = -3"),
    ],
    ids=["zero", "number", "variable", "negative"],
)
def test_difference_at_a_tie_is_said(hand, derived, proviso):
    assert provisos(hand, derived) == (proviso,)


def test_tie_that_does_not_matter_is_not_said():
    assert provisos(case(X, -X, 2 * X, X), case(X, -X, ZERO, X)) == ()


# ---- where both are defined ----


@pytest.mark.parametrize(
    ("hand", "derived", "expected"),
    [
        (X * X / X, X, ("the hand-written gradient is defined only where x != 0",)),
        (X, X * X / X, ("the derived gradient is defined only where x != 0",)),
        (X / X, (2 * X) / (2 * X), ()),
        (X / (X * Y), 1 / Y, ("the hand-written gradient is defined only where x != 0",)),
        (1 / (X * X), (1 / X) / X, ()),
        (X / (1 + s.exp(Y)), X / (s.exp(Y) + 1), ()),
        (s.log(X) + Y / X * X, s.log(X) + Y, ()),
        (X, s.exp(s.log(X)), ("the derived gradient is defined only where x > 0",)),
        (
            X ** Fraction(-1, 2) * X,
            X ** Fraction(1, 2),
            ("the hand-written gradient is defined only where x > 0",),
        ),
        (
            s.log(X * Y),
            s.log(X) + s.log(Y),
            ("the derived gradient is not defined where x < 0", "not shown where x = 0"),
        ),
    ],
    ids=lambda value: None,
)
def test_what_only_one_needs_is_said(hand, derived, expected):
    assert provisos(hand, derived) == expected


def test_case_that_is_undefined_on_both_sides_is_passed():
    root = s.exp(s.log(X) / 2)

    assert provisos(case(X, root, ZERO, X), case(X, root + 1, ZERO, X)) == ()


@pytest.mark.parametrize(
    "hand",
    [case(X, s.log(X), ZERO, X), s.exp(s.log(X)), 0 * s.log(X) + X],
    ids=["case", "logarithm", "zero times nothing"],
)
def test_hand_written_hole_is_left_open(hand):
    outcome = compare(hand, X)

    assert outcome.reason == "the hand-written gradient is not defined where x < 0"


def test_hole_outside_the_domain_does_not_matter():
    by_output = s.exp(-s.log(X))

    assert isinstance(compare(by_output, 1 / X), NotShown)
    assert provisos(by_output, 1 / X, s.log(X)) == ()


def test_difference_outside_the_domain_does_not_matter():
    size = case(X, -X, ZERO, X)

    assert isinstance(compare(1 / size, 1 / X), NotShown)
    assert provisos(1 / size, 1 / X, s.log(X)) == ()


def test_domain_of_another_variable_does_not_help():
    assert isinstance(compare(s.exp(-s.log(X)), 1 / X, s.log(Y)), NotShown)


def test_derived_hole_is_said():
    found = provisos(X, case(X, s.log(X), ZERO, X))

    assert found == ("the derived gradient is not defined where x < 0",)


def test_undefined_condition_is_not_taken_for_undefined():
    chosen = select(greater(s.log(X), ZERO), X, Y)
    outcome = compare(chosen + 0 * Y, select(greater(s.log(X), ZERO), X, Y + 0 * Y))

    assert outcome.reason == "what the gradients are is not clear where x < 0"


def test_undefined_condition_of_nothing_is_nothing():
    chosen = select(greater(s.log(X), ZERO), s.log(X), 1 + s.log(X))

    assert provisos(2 * chosen, chosen + chosen) == ("not shown where x = 0",)


def test_infinity_is_not_taken_for_undefined():
    ramp = relu(X)

    assert "not clear" in compare(case(X, Y, ZERO, X), 1 / (1 / ramp)).reason


# ---- equalities with volume ----


@pytest.mark.parametrize(
    "of",
    [
        s.floor(X),
        (X * X) ** Fraction(1, 2) - X,
        s.atan(X) + s.atan(1 / X) - known_number(math.pi) / 2,
    ],
    ids=["step", "root of a square", "two arcs"],
)
def test_equality_with_volume_is_no_tie(of):
    outcome = compare(case(of, X, Y, X), X)

    assert isinstance(outcome, NotShown)


def test_power_of_negative_numbers_is_not_shown():
    found = provisos(X**Y * X, X ** (Y + 1))

    assert found == ("not shown where x < 0", "not shown where x = 0")


# ---- limits ----


def test_no_time_is_told():
    assert compare(s.sin(2 * X), 2 * s.sin(X) * s.cos(X), seconds=0) == NotShown("time limit")


def test_too_many_cases_are_told(monkeypatch):
    monkeypatch.setattr(module, "MOST_REGIONS", 5)
    names = [variable(f"v{n}") for n in range(6)]
    many = s.sum_of([relu(v) for v in names])

    assert compare(many, many * 1 + 0 * X).reason == "too many cases"


def test_failing_sympy_is_told(monkeypatch):
    def failing(*args):
        raise NotImplementedError

    monkeypatch.setattr(module, "vanishes", failing)

    assert compare(X, Y).reason == "sympy gives up: NotImplementedError"
