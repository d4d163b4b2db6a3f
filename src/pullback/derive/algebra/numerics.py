"""Expressions at points: exact fractions for the variables, as many digits as asked."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath

from pullback.derive.algebra.scalars import Scalar, nodes_of

Point = Mapping[Scalar, Fraction]

LARGEST = 10**5  # of what exp is taken of: beyond, numbers have more digits than memory


class Undefined(Exception):
    """An expression has no value at this point, or none that can be told."""


class Values:
    """The values of expressions at one point."""

    def __init__(self, point: Point, digits: int) -> None:
        self.point = point
        self.context: Any = mpmath.MPContext()
        self.context.dps = digits
        self.noise = self.context.mpf(10) ** (15 - digits)
        self._known: dict[Scalar, Any] = {}

    def __call__(self, scalar: Scalar) -> Any:
        """The value of `scalar`; raises `Undefined` where it has none."""
        found = self._known.get(scalar)
        if found is None:
            found = self._known[scalar] = self._value(scalar)
        if isinstance(found, Undefined):
            raise found
        return found

    def _value(self, scalar: Scalar) -> Any:
        try:
            return self._computed(scalar)
        except Undefined as undefined:
            return undefined
        except (OverflowError, ZeroDivisionError, ValueError) as error:
            return Undefined(str(error))

    def _computed(self, scalar: Scalar) -> Any:
        kind, parts = scalar.kind, scalar.parts
        if kind == "number":
            return self._exact(parts[0])
        if kind == "variable":
            return self._exact(self.point[scalar])
        if kind == "pi":
            return +self.context.pi
        if kind == "case":
            return self(parts[2 + self._sign(self(parts[0]))])
        values = [self(part) for part in parts]
        if kind == "add":
            return self.context.fsum(values)
        if kind == "mul":
            return values[0] * values[1]
        if kind == "div":
            return values[0] / _nonzero(values[1])
        return self._power(*values) if kind == "pow" else self._function(kind, values[0])

    def _exact(self, value: Fraction) -> Any:
        return self.context.mpf(value.numerator) / value.denominator

    def _sign(self, value: Any) -> int:
        if value == 0:
            return 0
        if abs(value) < self.noise:
            raise Undefined("too near to zero to have a sign")
        return 1 if value > 0 else -1

    def _power(self, base: Any, exponent: Any) -> Any:
        if base == 0 and exponent < 0:
            raise Undefined("a negative power of zero")
        if base < 0 and exponent != int(exponent):
            raise Undefined("a broken power of a negative number")
        if base != 0 and abs(exponent * self.context.log(abs(base))) > LARGEST:
            raise Undefined("too large")
        return base**exponent

    def _function(self, kind: str, x: Any) -> Any:
        if not _DOMAINS.get(kind, _everywhere)(x):
            raise Undefined(f"{kind} of {x}")
        return getattr(self.context, _NAMES.get(kind, kind))(x)


def _nonzero(value: Any) -> Any:
    if value == 0:
        raise Undefined("division by zero")
    return value


def _everywhere(x: Any) -> bool:
    return bool(abs(x) < LARGEST)


_NAMES = {"lgamma": "loggamma"}
_DOMAINS: dict[str, Callable[[Any], bool]] = {
    "log": lambda x: x > 0,
    "asin": lambda x: abs(x) <= 1,
    "acos": lambda x: abs(x) <= 1,
    "acosh": lambda x: x >= 1,
    "atanh": lambda x: abs(x) < 1,
    "lgamma": lambda x: 0 < x < LARGEST,
    "digamma": lambda x: 0 < x < LARGEST,
}


# ---- points ----

# From where the numbers of a point are drawn: two ends and the step. All are exact in a float.
_RANGES = [(-3, 3, 8), (0, 1, 64), (1, 4, 8), (-1, 1, 64), (0, 3, 8), (-3, 0, 8), (-40, 40, 4)]
ROUNDS = 3


def draw(
    variables: Sequence[Scalar], likes: Mapping[Scalar, Fraction], roots: Sequence[Scalar]
) -> list[dict[Scalar, Fraction]]:
    """Points to try: in several ranges, around `likes`, and around the numbers in `roots`.

    They are the same for the same arguments.
    """
    rng = random.Random(len(variables))
    special = _special(roots)
    points = []
    for _ in range(ROUNDS):
        for low, high, step in _RANGES:
            points.append({v: _inside(rng, low, high, step) for v in variables})
        points.append({v: likes.get(v, Fraction(1)) + _inside(rng, -1, 1, 64) / 8 for v in variables})
        for _ in range(2 * bool(special)):
            points.append({v: rng.choice(special) + _inside(rng, -1, 1, 8) for v in variables})
    return points


def _inside(rng: random.Random, low: int, high: int, step: int) -> Fraction:
    """A fraction between the ends; never one of them, nor zero."""
    while True:
        drawn = Fraction(rng.randrange(low * step + 1, high * step), step)
        if drawn:
            return drawn


def _special(roots: Sequence[Scalar]) -> list[Fraction]:
    """The numbers in `roots`, roughly: what is compared is compared with one of them."""
    numbers = [s.parts[0] for s in nodes_of(*roots) if s.kind == "number"]
    rough = {Fraction(round(n * 64), 64) for n in numbers if abs(n) < 1000}
    return sorted(rough | {-n for n in rough})
