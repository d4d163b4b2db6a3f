"""Is a sympy expression zero on a set without volume only?

An expression that is analytic for all values of its symbols, and not zero at some, is zero on a set
without volume only: a corner, a tie, a pole. `floor(x)` and `sqrt(x**2) - x` are not of that kind.
"""

from __future__ import annotations

import sympy  # type: ignore[import-untyped]

from pullback.prove.signs import Expr, sign_of
from pullback.prove.zero_test import is_zero_at_points

_SMOOTH = (
    *(sympy.exp, sympy.sin, sympy.cos, sympy.sinh, sympy.cosh, sympy.tanh),
    *(sympy.erf, sympy.atan, sympy.asinh),
)


def is_thin(e: Expr) -> bool:
    """Whether it is known that `e` is zero on a set without volume only."""
    return is_analytic(e) and not is_zero_at_points(e)


def is_analytic(e: Expr) -> bool:
    """Whether it is known that `e` has a power series everywhere."""
    if e.is_Symbol:
        return bool(e.is_real)
    if e.is_number:
        return bool(e.is_real and e.is_finite)
    if not all(map(is_analytic, e.args)):
        return False
    if e.is_Add or e.is_Mul or isinstance(e, _SMOOTH):
        return True
    if isinstance(e, sympy.log):
        return sign_of(e.args[0]) == 1
    return bool(e.is_Pow) and _is_smooth_power(e.base, e.exp)


def _is_smooth_power(base: Expr, exponent: Expr) -> bool:
    if exponent.is_Integer:
        return exponent >= 0 or sign_of(base) in (-1, 1)
    return sign_of(base) == 1
