"""Numbers in their simplest form."""

from __future__ import annotations

import math
from fractions import Fraction

from pullback.judge.tolerances import REFINED, SIMPLE


def simplest(number: float) -> str:
    """A number in its simplest form: `1/2`, `sqrt(2)`, `pi`, or in six digits.

    >>> simplest(0.5), simplest(-2 / 3), simplest(2**0.5), simplest(1.2345678)
    ('1/2', '-2/3', 'sqrt(2)', '1.23457')
    """
    sign = "-" if number < 0 else ""
    size = abs(number)
    whole = _fraction(size)
    if whole:
        return sign + whole
    square = _fraction(size * size)
    if square and "/" not in square:
        return f"{sign}sqrt({square})"
    under = _fraction(1 / (size * size)) if size else ""
    if under and "/" not in under:
        return f"{sign}1/sqrt({under})"
    for name, value in (("pi", math.pi), ("log(2)", math.log(2))):
        times = _fraction(size / value)
        if times:
            return f"{sign}{name}" if times == "1" else f"{sign}{times}*{name}"
    return f"{number:.6g}"


def _fraction(number: float) -> str:
    """A fraction of small numbers that equals `number`, or nothing."""
    near = Fraction(number).limit_denominator(64)
    is_equal = abs(float(near) - number) <= SIMPLE * max(number, SIMPLE)
    return str(near) if is_equal and near.numerator < 10_000 else ""


def refined(number: float) -> float:
    """The number of simple form that `number` is but for rounding, or itself.

    >>> refined(1.9999999999), refined(1.41421356238)
    (2.0, 1.4142135623730951)
    """
    for power, back in ((1, 1.0), (2, 0.5)):
        near = Fraction(abs(number) ** power).limit_denominator(64)
        found = math.copysign(float(near) ** back, number)
        if near and abs(found - number) <= REFINED * abs(number):
            return found
    return number
