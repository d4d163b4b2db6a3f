"""The sign of expressions which have the same sign everywhere."""

import pytest
import sympy

from pullback.prove.signs import sign_of

X = sympy.Symbol("x", real=True)
P, Q = sympy.symbols("p q", positive=True)

KNOWN = [
    (sympy.exp(X), 1),
    (sympy.exp(-P) - 1, -1),
    (sympy.exp(P) - 1, 1),
    (1 - sympy.erf(X), 1),
    (sympy.atan(P), 1),
    (sympy.sin(X) + 2, 1),
    (X**2 + 1, 1),
    (-(X**2) - 1, -1),
    (1 / (1 + P) - 1, -1),
    (sympy.sqrt(1 + P) - 1, 1),
    (3 * P * sympy.exp(X), 1),
    (-2 * P * Q, -1),
    (sympy.sqrt(2) - 1, 1),
    (sympy.Integer(0), 0),
]
OPEN = [X, X**2, P - Q, sympy.sin(X) + 1, sympy.exp(X) - 1, P * X, X**3 + P, 1 / P - 1]


@pytest.mark.parametrize(("e", "sign"), KNOWN, ids=lambda v: str(v))
def test_sign_that_never_changes_is_known(e, sign):
    assert sign_of(e) == sign


@pytest.mark.parametrize("e", OPEN, ids=str)
def test_sign_that_changes_is_not_known(e):
    assert sign_of(e) is None
