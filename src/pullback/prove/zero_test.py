"""Is a sympy expression zero for all values of its symbols?

`vanishes` tries several methods and believes the first that shows it. The strongest writes sines,
cosines and hyperbolic functions as exponentials, splits logarithms of products, and expands the
numerator: sympy then treats each exponential, root and logarithm as one more variable.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import sympy  # type: ignore[import-untyped]

from pullback.judge.tolerances import NOISE
from pullback.prove.deadline import TimeLimitError, call_within
from pullback.prove.signs import Expr

_DIGITS = 40
_EXPANSIONS = 4  # a root that is multiplied out may leave a quotient inside


def vanishes(expression: Expr, deadline: float) -> bool:
    """Whether `expression` is shown to be zero before `deadline`, a time of `time.process_time`.

    Raises `TimeLimitError` if it is not shown because there was no time to try every method.
    """
    if expression == 0:
        return True
    is_late = False
    for method, share in METHODS:
        left = deadline - time.process_time()
        try:
            if call_within(left * share, method, expression):
                return call_within(left, is_zero_at_points, expression)
        except TimeLimitError:
            is_late = True
        except Exception:  # sympy has no one class for what it cannot do
            continue
    if is_late:
        raise TimeLimitError
    return False


def is_zero_at_points(expression: Expr) -> bool:
    """Whether it is zero at a few points: a check by numbers of what a method says."""
    symbols = sorted(expression.free_symbols, key=str)
    for start in (-7, 5, 31):
        point = {
            s: sympy.Rational(abs(start) if s.is_positive else start, 9 + 2 * n)
            for n, s in enumerate(symbols)
        }
        value = expression.subs(point).evalf(_DIGITS, chop=True)
        if value.is_Float and abs(value) > NOISE:
            return False
    return True


# Each method, and which share of the time that is left it may take.
METHODS: list[tuple[Callable[[Expr], bool], float]] = [
    (lambda expression: bool(numerator_of(expression) == 0), 0.7),
    (lambda expression: bool(sympy.simplify(expression) == 0), 1.0),
]

_WAVES = (sympy.sin, sympy.cos, sympy.tan, sympy.sinh, sympy.cosh, sympy.tanh)


def numerator_of(expression: Expr) -> Expr:
    """A polynomial in exponentials, roots and logarithms: zero only if `expression` is."""
    plain = expression.replace(lambda e: e.func in _WAVES, lambda e: e.rewrite(sympy.exp))
    plain = plain.replace(sympy.log, lambda of: sympy.log(sympy.factor(sympy.together(of))))
    for _ in range(_EXPANSIONS):
        before, plain = plain, sympy.expand(sympy.fraction(sympy.together(plain))[0])
        if plain in (0, before):
            break
    return plain
