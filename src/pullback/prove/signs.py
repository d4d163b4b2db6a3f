"""The sign of a sympy expression, where it is the same for all values of its symbols.

sympy's own assumptions come first; they know nothing of `exp(p) - 1` for a positive p, so that
ranges of values follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]

Expr = Any
"""A sympy expression; sympy has no types."""


def sign_of(e: Expr) -> int | None:
    """-1, 0 or 1; None if the sign varies, or if nothing is known about it."""
    if e.is_positive:
        return 1
    if e.is_negative:
        return -1
    if e.is_zero:
        return 0
    if e.is_real is False:
        return None
    inside = _range(e)
    if inside.low.is_extended_positive or (inside.low.is_zero and not inside.has_low):
        return 1
    if inside.high.is_extended_negative or (inside.high.is_zero and not inside.has_high):
        return -1
    return None


@dataclass(frozen=True, slots=True)
class _Range:
    """All values between two ends, and whether an end may itself be a value."""

    low: Expr
    high: Expr
    has_low: bool = False
    has_high: bool = False

    def flipped(self) -> _Range:
        return _Range(-self.high, -self.low, self.has_high, self.has_low)


_ANYTHING = _Range(-sympy.oo, sympy.oo)
_RISING = (sympy.exp, sympy.erf, sympy.atan, sympy.asinh, sympy.tanh, sympy.sinh)


def _range(e: Expr) -> _Range:
    if e.is_number:
        return _Range(e, e, True, True) if e.is_real else _ANYTHING
    if e.is_Symbol:
        return _Range(sympy.S.Zero, sympy.oo) if e.is_positive else _ANYTHING
    if e.is_Add:
        return _sum(e)
    if e.is_Mul:
        return _product(e)
    if isinstance(e, _RISING):
        return _raised(e.func, _range(e.args[0]))
    if isinstance(e, (sympy.sin, sympy.cos)):
        return _Range(-sympy.S.One, sympy.S.One, True, True)
    if e.is_Pow and e.exp.is_Rational:
        return _power(_range(e.base), e.exp)
    return _ANYTHING


def _sum(e: Expr) -> _Range:
    parts = [_range(arg) for arg in e.args]
    return _Range(
        sympy.Add(*(part.low for part in parts)),
        sympy.Add(*(part.high for part in parts)),
        all(part.has_low for part in parts),
        all(part.has_high for part in parts),
    )


def _product(e: Expr) -> _Range:
    factor, rest = e.as_coeff_Mul()
    if factor != 1:
        inside = _range(rest)
        inside = inside if factor > 0 else inside.flipped()
        size = abs(factor)
        return _Range(inside.low * size, inside.high * size, inside.has_low, inside.has_high)
    parts = [_range(arg) for arg in e.args]
    if not all(part.low.is_extended_nonnegative for part in parts):
        return _ANYTHING
    low = sympy.Mul(*(part.low for part in parts))
    highs = [part.high for part in parts]
    high = sympy.oo if sympy.oo in highs else sympy.Mul(*highs)
    # A product is at its lower end 0 as soon as one factor is.
    has_low = any(p.has_low and p.low == 0 for p in parts) or all(p.has_low for p in parts)
    return _Range(low, high, has_low, all(p.has_high for p in parts))


def _raised(function: Any, inside: _Range) -> _Range:
    # sympy knows these functions at both infinities.
    return _Range(function(inside.low), function(inside.high), inside.has_low, inside.has_high)


def _power(base: _Range, exponent: Expr) -> _Range:
    if not base.low.is_extended_nonnegative:
        is_even = exponent.is_Integer and exponent > 0 and exponent % 2 == 0
        return _Range(sympy.S.Zero, sympy.oo, True) if is_even else _ANYTHING
    if exponent > 0:
        return _Range(base.low**exponent, base.high**exponent, base.has_low, base.has_high)
    low = sympy.S.Zero if base.high == sympy.oo else base.high**exponent
    high = base.low**exponent if base.low.is_extended_positive else sympy.oo
    return _Range(low, high, base.has_high, base.has_low)
