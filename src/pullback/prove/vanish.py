"""Is an expression of sympy's zero for all values of its symbols?

`vanishes` tries several ways and believes the first that shows it. The strongest writes the
expression as a quotient of polynomials: each exponential, root and other function becomes one more
unknown, exponentials of sums become products, sines and cosines exponentials, and a root's power is
what it is the root of. If the numerator is then the zero polynomial, the expression is zero.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import sympy  # type: ignore[import-untyped]

from pullback.prove.bounds import Expr
from pullback.prove.deadline import TimeLimitError, within

_DIGITS, _NOISE = 40, 1e-12


def vanishes(expression: Expr, deadline: float) -> bool:
    """Whether `expression` is shown to be zero before `deadline`, a time of `time.process_time`.

    Raises `TimeLimitError` if it is not shown because there was no time to try every way.
    """
    if expression == 0:
        return True
    is_late = False
    for way, share in WAYS:
        left = deadline - time.process_time()
        try:
            if within(left * share, way, expression):
                return within(left, _is_zero_at_points, expression)
        except TimeLimitError:
            is_late = True
        except Exception:  # this way knows nothing of such an expression: sympy has many words
            continue
    if is_late:
        raise TimeLimitError
    return False


def _is_zero_at_points(expression: Expr) -> bool:
    """Whether no number speaks against it: what shows that it is zero may itself be wrong."""
    symbols = sorted(expression.free_symbols, key=str)
    for start in (-7, 5, 31):
        point = {
            s: sympy.Rational(abs(start) if s.is_positive else start, 9 + 2 * n)
            for n, s in enumerate(symbols)
        }
        value = expression.subs(point).evalf(_DIGITS, chop=True)
        if value.is_Float and abs(value) > _NOISE:
            return False
    return True


def _by_expanding(expression: Expr) -> bool:
    return bool(sympy.expand(expression) == 0)


def _by_quotient(expression: Expr) -> bool:
    return bool(numerator_of(expression) == 0)


def _by_simplifying(expression: Expr) -> bool:
    return bool(sympy.simplify(expression) == 0)


# Each way, and which part of the time that is left it may take.
WAYS: list[tuple[Callable[[Expr], bool], float]] = [
    (_by_quotient, 0.6),
    (_by_expanding, 0.4),
    (_by_simplifying, 1.0),
]


# ---- as a quotient of polynomials ----


def numerator_of(expression: Expr) -> Expr:
    """A polynomial that is zero only if `expression` is zero wherever it is defined."""
    waves: Any = (sympy.sin, sympy.cos, sympy.tan, sympy.sinh, sympy.cosh, sympy.tanh)
    plain = expression.replace(lambda e: e.func in waves, lambda e: e.rewrite(sympy.exp))
    unknowns = _Unknowns()
    unknowns.rational(plain)  # once, to see which fractions there are in exponents
    unknowns.known = {}
    return unknowns.reduced(_numerator(unknowns.rational(plain)))


def _numerator(expression: Expr) -> Expr:
    return sympy.expand(sympy.fraction(sympy.together(expression))[0])


class _Unknowns:
    """What stands for exponentials, roots and functions, while an expression is rewritten.

    An unknown for an exponential stands for `exp(m / d)`, one for a root for `b ** (1 / d)`, where
    `d` is what all the fractions that occur with `m` or `b` have as common denominator.
    """

    def __init__(self) -> None:
        self.known: dict[Expr, Expr] = {}
        self.denominators: dict[Expr, int] = {}
        self.symbols: dict[Expr, Expr] = {}
        self.roots: dict[Expr, Expr] = {}  # the unknown, and what it is a root of

    def rational(self, e: Expr) -> Expr:
        """`e` as a rational expression of symbols and unknowns."""
        found = self.known.get(e)
        if found is None:
            found = self.known[e] = self._rational(e)
        return found

    def _rational(self, e: Expr) -> Expr:
        if e.is_Rational or e is sympy.I or e.is_Symbol:
            return e
        if e is sympy.E:
            return self._exponential(sympy.S.One)
        if e.is_Add or e.is_Mul:
            return e.func(*map(self.rational, e.args))
        if isinstance(e, sympy.exp):
            return self._exponential(e.args[0])
        if e.is_Pow:
            return self._power(*e.args)
        if isinstance(e, sympy.Abs):
            return self._root(e.args[0] ** 2, sympy.Rational(1, 2))
        if isinstance(e, sympy.log):
            return self._logarithm(e)
        if e.args:
            return self._unknown((e.func, *(_canonical(arg) for arg in e.args)))
        return self._unknown((e,))

    def _unknown(self, key: Expr) -> Expr:
        return self.symbols.setdefault(key, sympy.Dummy())

    def _fraction(self, key: Expr, exponent: Expr) -> Expr:
        """The unknown for `key`, to the power that makes it `exponent` of what it stands for."""
        d = self.denominators.get(key, 1)
        d = self.denominators[key] = math.lcm(d, int(exponent.q))
        return self._unknown(key) ** (exponent * d)

    def _exponential(self, exponent: Expr) -> Expr:
        parts = []
        for term in sympy.Add.make_args(sympy.expand(exponent)):
            number, rest = term.as_coeff_Mul()
            if isinstance(rest, sympy.log):
                parts.append(self.rational(rest.args[0] ** number))
            elif number.is_Rational:
                parts.append(self._fraction(("exp", rest), number))
            else:
                parts.append(self._unknown(("exp", term)))
        return sympy.Mul(*parts)

    def _power(self, base: Expr, exponent: Expr) -> Expr:
        if exponent.is_Integer:
            return self.rational(base) ** exponent
        if exponent.is_Rational:
            return self._root(base, exponent)
        parts = []
        for term in sympy.Add.make_args(sympy.expand(exponent)):
            number, rest = term.as_coeff_Mul()
            if rest == 1:
                parts.append(self._power(base, number))
            elif number.is_Rational:
                parts.append(self._fraction(("pow", _canonical(base), rest), number))
            else:
                parts.append(self._unknown(("pow", _canonical(base), term)))
        return sympy.Mul(*parts)

    def _root(self, base: Expr, exponent: Expr) -> Expr:
        whole = _canonical(base)
        if not whole.is_Rational:
            content, whole = whole.primitive() if whole.is_Add else whole.as_coeff_Mul()
            if content != 1 and content.is_positive:
                return self.rational(content**exponent) * self._root(whole, exponent)
            if content != 1:
                whole = content * whole
        self.rational(whole)  # the roots inside come first
        power = self._fraction(("root", whole), exponent)
        self.roots[self._unknown(("root", whole))] = ("root", whole)
        return power

    def _logarithm(self, e: Expr) -> Expr:
        parts = sympy.expand_log(sympy.log(sympy.factor(sympy.together(e.args[0]))))
        if isinstance(parts, sympy.log):
            return self._unknown(("log", _canonical(parts.args[0])))
        return self.rational(parts)

    # ---- powers of roots ----

    def reduced(self, numerator: Expr) -> Expr:
        """`numerator` with no power of a root left that is no root."""
        for unknown in reversed(list(self.roots)):
            if numerator == 0:
                break
            key = self.roots[unknown]
            base, degree = self.rational(key[1]), self.denominators[key]
            terms = sympy.Poly(numerator, unknown).terms()
            replaced = [
                factor * base ** (power // degree) * unknown ** (power % degree)
                for (power,), factor in terms
            ]
            numerator = _numerator(sympy.Add(*replaced))
        return numerator


def _canonical(e: Expr) -> Expr:
    """The same expression, written in one way as far as that is cheap."""
    return e if e.is_Atom else sympy.cancel(sympy.together(e))
