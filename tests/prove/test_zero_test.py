"""Identities are shown, and what is no identity is not."""

import time

import pytest
import sympy
from sympy import Rational, cos, erf, exp, log, sin, sqrt, tan, tanh

from pullback.prove import zero_test
from pullback.prove.deadline import TimeLimitError
from pullback.prove.zero_test import numerator_of, vanishes

X, Y, Z = sympy.symbols("x y z", real=True)
P, Q = sympy.symbols("p q", positive=True)

ZERO = {
    "circle": sin(X) ** 2 + cos(X) ** 2 - 1,
    "double angle": sin(2 * X) - 2 * sin(X) * cos(X),
    "half angle": 2 * sin(X / 2) ** 2 - 1 + cos(X),
    "sum of angles": sin(X + Y) - sin(X) * cos(Y) - cos(X) * sin(Y),
    "tangent": tan(X) - sin(2 * X) / (1 + cos(2 * X)),
    "hyperbola": tanh(X) - (1 - exp(-2 * X)) / (1 + exp(-2 * X)),
    "sum of exponents": exp(X + Y) - exp(X) * exp(Y),
    "half exponent": exp(X / 2) * exp(X / 3) - exp(5 * X / 6),
    "exponent of logarithm": exp(X - log(1 + exp(X)) / 2)
    - exp(X) * (1 + exp(X)) ** Rational(-1, 2),
    "e": exp(X + 1) - sympy.E * exp(X),
    "logarithm": log(1 + exp(-X)) + X - log(1 + exp(X)),
    "logarithm of a product": log(P * exp(X)) - X - log(P),
    "power of a root": (X**2 + 1) ** Rational(3, 2) - (X**2 + 1) * sqrt(X**2 + 1),
    "inverse root": 1 / sqrt(X**2 + 1) - sqrt(X**2 + 1) / (X**2 + 1),
    "content of a root": sqrt(2 * X**2 + 2) - sqrt(2) * sqrt(X**2 + 1),
    "root of a root": sqrt(1 + sqrt(P)) ** 4 - 1 - 2 * sqrt(P) - P,
    "roots of two kinds": sqrt(1 + X**2)
    - (1 + X**2) ** Rational(3, 4) / (1 + X**2) ** Rational(1, 4),
    "absolute value": sympy.Abs(X) ** 2 - X**2,
    "symbolic power": P ** (X + 1) - P * P**X,
    "multiple of an exponent": P ** (2 * X) - (P**X) ** 2,
    "kernels": X * erf(Y * (X + 1)) - X * erf(X * Y + Y),
    "quotients": 1 / (X + 1) - 1 / (X - 1) + 2 / (X**2 - 1),
}
NOT_ZERO = {
    "sine": sin(X) - X,
    "root": sqrt(X**2 + 1) - X,
    "roots of products": sqrt(X * Y) - sqrt(X) * sqrt(Y),
    "logarithm of a product": log(X * Y) - log(X) - log(Y),
    "root of a square": sqrt((X + Y) ** 2) - X - Y,
    "exponent": exp(2 * X) - exp(X) ** 3,
    "nearly": Rational(1, 10**30) * X,
    "error function": erf(X) - erf(2 * X),
    "complex power": (-X) ** Rational(1, 3) + X ** Rational(1, 3),
}


@pytest.mark.parametrize("name", ZERO)
def test_identity_is_shown(name):
    assert vanishes(ZERO[name], time.process_time() + 60)


@pytest.mark.parametrize("name", ZERO)
def test_identity_has_no_numerator(name):
    assert numerator_of(ZERO[name]) == 0


@pytest.mark.parametrize("name", NOT_ZERO)
def test_what_is_no_identity_is_not_shown(name):
    assert not vanishes(NOT_ZERO[name], time.process_time() + 60)


def test_time_limit_is_reported(monkeypatch):
    def endless(expression):
        while True:
            pass

    monkeypatch.setattr(zero_test, "METHODS", [(endless, 1.0)])

    with pytest.raises(TimeLimitError):
        vanishes(X, time.process_time() + 0.1)


def test_method_that_fails_is_passed_over(monkeypatch):
    def failing(expression):
        raise NotImplementedError

    monkeypatch.setattr(zero_test, "METHODS", [(failing, 0.5), (lambda e: True, 1.0)])

    assert vanishes(sympy.sin(X) ** 2 + sympy.cos(X) ** 2 - 1, time.process_time() + 60)


def test_no_method_is_believed_against_numbers(monkeypatch):
    monkeypatch.setattr(zero_test, "METHODS", [(lambda e: True, 1.0)])

    assert not vanishes(X**3 - X, time.process_time() + 60)
