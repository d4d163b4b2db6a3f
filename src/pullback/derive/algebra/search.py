"""The search for numbers at which a hand-written gradient is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pullback.derive.algebra.numerics import Point, Undefined, Values, draw
from pullback.derive.algebra.scalars import Scalar
from pullback.derive.algebra.sides import Key, View

DIGITS = 50
EQUAL = 1e-30  # what two values of fifty digits may be apart, relative to their size
DIFFERENT = 1e-6  # what a witness must be apart, so that float64 can see it
MODERATE = 4  # up to which size of numbers float64 must give what the expressions give
SIMPLE = (1, 2, 4, 16, 256)  # denominators to try for a witness that reads well


@dataclass(frozen=True, slots=True)
class Pair:
    """The elements of one gradient on both sides."""

    hand: Sequence[Scalar]
    derived: Sequence[Scalar]


@dataclass(frozen=True, slots=True)
class Difference:
    """A point at which element `place` of a gradient is wrong, as float64 has it."""

    point: Point
    place: int
    expected: float
    got: float


@dataclass(frozen=True, slots=True)
class _Element:
    """One element on both sides: its values, None where undefined; and how far they are apart."""

    hand: Any
    derived: Any
    apart: float


class Search:
    """What came of comparing both sides of a view at points.

    `found` are the differences that float64 confirms. Where fifty digits show one and float64
    does not, `nearest` says how large it is, relative to the values; `misread` has the gradients
    for which float64 gives something else than the expressions; `compared` says how many
    elements were compared.
    """

    def __init__(self, view: View, pairs: Mapping[Key, Pair]) -> None:
        self.view = view
        self.pairs = pairs
        self.found: dict[Key, Difference] = {}
        self.compared = dict.fromkeys(pairs, 0)
        self.nearest = dict.fromkeys(pairs, 0.0)
        self.misread: set[Key] = set()

    def run(self) -> None:
        """Try the points that are drawn."""
        roots = [s for pair in self.pairs.values() for s in (*pair.hand, *pair.derived)]
        for point in draw(self.view.variables, self._likes(), roots):
            self.attempt(point, list(self.pairs))

    def _likes(self) -> dict[Scalar, Fraction]:
        """The values of the examples, where a point has a place for them."""
        likes = {}
        for place, scalars in self.view.inputs.items():
            values = self.view.sides.tensors[place].flatten().tolist() or [1.0]
            finite = [v if math.isfinite(v) else 1.0 for v in values]
            for n, scalar in enumerate(scalars):
                likes[scalar] = Fraction(finite[n % len(finite)])
        return likes

    def attempt(self, point: Point, keys: Sequence[Key]) -> None:
        """Compare the gradients `keys` at `point`."""
        values, is_moderate = _Both(point), all(abs(v) <= MODERATE for v in point.values())
        ran: dict[bool, dict[Key, list[float]]] | None = None
        for key in [key for key in keys if key not in self.found]:
            elements = values.elements(self.pairs[key])
            self.compared[key] += sum(None not in (e.hand, e.derived) for e in elements)
            if not is_moderate and all(e.apart == 0 for e in elements):
                continue
            ran = self._ran(point) if ran is None else ran
            if ran:
                self._judge(key, values, elements, ran)
                self._look_at_reading(key, elements, ran, is_moderate)

    def _ran(self, point: Point) -> dict[bool, dict[Key, list[float]]]:
        """What both programs give at a point; nothing if one of them cannot run there."""
        try:
            return {hand: self.view.run(point, hand=hand) for hand in (True, False)}
        except Exception:
            return {}

    def _judge(
        self, key: Key, values: _Both, elements: Sequence[_Element], ran: Mapping[bool, Any]
    ) -> None:
        worst = sorted(range(len(elements)), key=lambda place: -elements[place].apart)
        for place in worst:
            element = elements[place]
            if element.apart > DIFFERENT and _confirms(element, *self._of(key, place, ran)):
                self.found[key] = self._simplest(key, values, place, ran)
                return
            self.nearest[key] = max(self.nearest[key], element.apart)

    def _of(self, key: Key, place: int, ran: Mapping[bool, Any]) -> tuple[float, float]:
        """One element as the programs give it: hand-written, and derived."""
        got, expected = (ran[hand].get(key) for hand in (True, False))
        return got[place] if got else 0.0, expected[place] if expected else 0.0

    def _look_at_reading(
        self, key: Key, elements: Sequence[_Element], ran: Mapping[bool, Any], is_moderate: bool
    ) -> None:
        """Note a gradient whose expressions do not give what the programs give."""
        pairs = [(e, *self._of(key, place, ran)) for place, e in enumerate(elements)]
        sizes = [abs(v) for _, *both in pairs for v in both if math.isfinite(v)]
        allowed = 1e-6 * max([1.0, *sizes])
        for element, got, expected in pairs:
            for exact, run in ((element.hand, got), (element.derived, expected)):
                is_comparable = exact is not None and math.isfinite(run)
                if is_moderate and is_comparable and abs(exact - run) > allowed:
                    self.misread.add(key)

    def _simplest(
        self, key: Key, values: _Both, place: int, ran: Mapping[bool, Any]
    ) -> Difference:
        """The difference that was found, or one with shorter numbers and all the same cases."""
        got, expected = self._of(key, place, ran)
        for denominator in SIMPLE:
            point = {
                v: Fraction(round(x * denominator), denominator) for v, x in values.point.items()
            }
            rounded = _Both(point)
            element = rounded.elements(self.pairs[key])[place]
            if element.apart < 1e-3 or rounded.signs != values.signs:
                continue
            again = self._ran(point)
            if again and _confirms(element, *self._of(key, place, again)):
                got, expected = self._of(key, place, again)
                return Difference(point, place, expected, got)
        return Difference(values.point, place, expected, got)


def _confirms(element: _Element, got: float, expected: float) -> bool:
    """Whether what the programs give shows the difference that the expressions show."""
    if element.hand is None:
        near = abs(expected - element.derived) <= 1e-6 * (1 + abs(element.derived))
        return math.isnan(got) and bool(near)
    apart = abs(element.hand - element.derived)
    is_near = abs(got - element.hand) <= apart / 10
    return bool(is_near and abs(expected - element.derived) <= apart / 10)


class _Both:
    """The values of expressions at a point, with fifty digits, and with more where they differ."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.values = Values(point, DIGITS)
        self.precise: Values | None = None

    @property
    def signs(self) -> Mapping[Scalar, int]:
        """Which case was taken, of each expression made of cases."""
        return self.values.signs

    def elements(self, pair: Pair) -> list[_Element]:
        """Every element of a gradient on both sides."""
        return [self._element(*both) for both in zip(pair.hand, pair.derived, strict=True)]

    def _element(self, hand: Scalar, derived: Scalar) -> _Element:
        right, _ = _value(self.values, derived)
        left, is_outside = _value(self.values, hand)
        if right is None or left is None:
            is_wrong = right is not None and is_outside
            return _Element(left, right, math.inf if is_wrong else 0.0)
        difference, size = abs(left - right), max(abs(left), abs(right))
        if difference <= EQUAL * size or self._is_noise(hand, derived, difference):
            return _Element(left, right, 0.0)
        return _Element(left, right, float(difference / size))

    def _is_noise(self, hand: Scalar, derived: Scalar, difference: Any) -> bool:
        """Whether a difference goes away with more digits."""
        if self.precise is None:
            self.precise = Values(self.point, 2 * DIGITS)
        (left, _), (right, _) = _value(self.precise, hand), _value(self.precise, derived)
        if left is None or right is None:
            return True
        return bool(abs(left - right) < difference * EQUAL)


def _value(values: Values, scalar: Scalar) -> tuple[Any, bool]:
    """The value, or None, and then whether it is so in a whole neighbourhood."""
    try:
        return values(scalar), False
    except Undefined as undefined:
        return None, undefined.is_outside
