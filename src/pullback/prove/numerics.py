"""Values of expressions at points: exact fractions for the variables, as many digits as asked."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]

from pullback.prove.scalars import DOMAINS, MEETS, Scalar, subexpressions

Point = Mapping[Scalar, Fraction]

LARGEST = 10**5  # argument of exp: beyond it, numbers have more digits than memory


class Undefined(Exception):
    """An expression has no value at this point, or none that can be computed.

    `is_outside` says that it has none anywhere near the point either, `is_vague` that it may have
    one.
    """

    def __init__(self, why: str, *, is_outside: bool = False, is_vague: bool = False) -> None:
        Exception.__init__(self, why)
        self.is_outside = is_outside
        self.is_vague = is_vague


class Values:
    """The values of expressions at one point."""

    def __init__(self, point: Point, digits: int) -> None:
        self.point = point
        self.context: Any = mpmath.MPContext()
        self.context.dps = digits
        self.noise = self.context.mpf(10) ** (15 - digits)
        self.signs: dict[Scalar, int] = {}
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
            return Undefined(str(error), is_vague=True)

    def _computed(self, scalar: Scalar) -> Any:
        kind, parts = scalar.kind, scalar.parts
        if kind == "number":
            return self._exact(parts[0])
        if kind == "variable":
            return self._exact(self.point[scalar])
        if kind == "pi":
            return +self.context.pi
        if kind == "case":
            sign = self.signs[scalar] = self._sign(self(parts[0]))
            return self(parts[2 + sign])
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
            raise Undefined("too near to zero to have a sign", is_vague=True)
        return 1 if value > 0 else -1

    def _power(self, base: Any, exponent: Any) -> Any:
        if base == 0 and exponent < 0:
            raise Undefined("a negative power of zero")
        if base < 0 and exponent != int(exponent):
            raise Undefined("a fractional power of a negative number", is_outside=True)
        if base != 0 and abs(exponent * self.context.log(abs(base))) > LARGEST:
            raise Undefined("too large", is_vague=True)
        return base**exponent

    def _function(self, kind: str, x: Any) -> Any:
        if abs(x) >= LARGEST:
            raise Undefined(f"{kind} of a number that is too large", is_vague=True)
        if not all(MEETS[rule](value) for value, rule in DOMAINS.get(kind, lambda x: ())(x)):
            raise Undefined(f"{kind} of {x}", is_outside=x != 0)
        if kind == "lgamma":
            return self.context.log(abs(self.context.gamma(x)))
        return getattr(self.context, kind)(x)


def _nonzero(value: Any) -> Any:
    if value == 0:
        raise Undefined("division by zero")
    return value


# ---- points ----

# The ranges of the numbers of a point: all below one, all above, on both sides of zero, far out.
_RANGES = [(-3, 3), (0, 1), (1, 4), (-1, 1), (0, 3), (-3, 0), (-40, 40)]
_NEAR = (1, 1, 8, 64)  # how near to the numbers in the formulas: corners may be close together
_STEP = 2**20  # so fine that no equality holds by chance, and exact in a float


def drawn_points(
    variables: Sequence[Scalar],
    examples: Mapping[Scalar, Fraction],
    roots: Sequence[Scalar],
    rounds: int,
) -> Iterator[dict[Scalar, Fraction]]:
    """Points to try: in several ranges, around `examples`, and around the numbers in `roots`.

    The same arguments give the same points.
    """
    rng = random.Random(len(variables))
    special = _special(roots)
    for _ in range(rounds):
        for low, high in _RANGES:
            yield {v: fraction_between(rng, low, high) for v in variables}
        yield {
            v: _fine(examples.get(v, Fraction(1))) + fraction_between(rng, -1, 1) / 8
            for v in variables
        }
        for near in _NEAR if special else ():
            yield {v: rng.choice(special) + fraction_between(rng, -1, 1) / near for v in variables}


def fraction_between(rng: random.Random, low: int, high: int) -> Fraction:
    """A fraction between two whole numbers, never one with a small denominator."""
    return Fraction(2 * rng.randrange(low * _STEP // 2, high * _STEP // 2) + 1, _STEP)


def _fine(value: Fraction) -> Fraction:
    return Fraction(round(value * _STEP), _STEP)


def _special(roots: Sequence[Scalar]) -> list[Fraction]:
    """The numbers in `roots`, rounded: a comparison in a formula is with one of them."""
    numbers = [s.parts[0] for s in subexpressions(*roots) if s.kind == "number"]
    rough = {_fine(n) for n in numbers if abs(n) < 1000}
    return sorted(rough | {-n for n in rough})
