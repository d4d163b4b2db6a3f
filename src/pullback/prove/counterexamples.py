"""The search for numbers at which a hand-written gradient is wrong."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pullback.judge.tolerances import DIFFERENT, NO_DIFFERENCE, READABLE
from pullback.prove.numerics import Point, Undefined, Values, drawn_points
from pullback.prove.programs import Key, View
from pullback.prove.scalars import Scalar, variables_of

WORKING_DIGITS = 50  # three times those of float64
MODERATE = 4  # inputs up to this size must give the same in float64 as the expressions
FLOAT_CHECKS = 8  # points at which that is checked
SIMPLE = (1, 2, 4, 16, 256)  # denominators to try for a witness that reads well


Ran = Mapping[bool, Mapping[Key, Sequence[float]]]
"""The gradients that the hand-written (True) and the derived program (False) give."""

_NOT_YET: Ran = {}


@dataclass(frozen=True, slots=True)
class GradientPair:
    """The elements of one gradient, hand-written and derived.

    `domains` has, for each element, the elements of the outputs that it depends on: where one
    of these is not defined, the gradient does not matter.
    """

    hand: Sequence[Scalar]
    derived: Sequence[Scalar]
    domains: Sequence[Sequence[Scalar]]


def gradient_pair(
    hand: Sequence[Scalar], derived: Sequence[Scalar], outputs: Mapping[Scalar, Scalar]
) -> GradientPair:
    """Both forms of a gradient; `outputs` are keyed by the variables of their cotangents."""
    rows = zip(hand, derived, strict=True)
    domains = [[outputs[v] for v in variables_of(*row) if v in outputs] for row in rows]
    return GradientPair(hand, derived, domains)


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A point at which element `place` of a gradient is wrong, with its values in float64."""

    point: Point
    place: int
    expected: float
    got: float


@dataclass(frozen=True, slots=True)
class _Element:
    """One element of both forms: its values, None where undefined; and how far they are apart.

    `is_missing` says that the derived one is surely not defined, though the outputs are,
    `is_beyond` that an output is surely not defined.
    """

    hand: Any
    derived: Any
    apart: float
    is_missing: bool = False
    is_beyond: bool = False


class CounterexampleSearch:
    """Compares both programs of a view at points, and keeps what was found.

    `found` are the differences that float64 confirms. Where fifty digits show one and float64
    does not, `nearest` says how large it is, relative to the values; `misread` has the gradients
    for which float64 gives something else than the expressions; `compared` says how many
    elements were compared, `seen` how many of them in float64 too.
    """

    def __init__(self, view: View, pairs: Mapping[Key, GradientPair]) -> None:
        self.view = view
        self.pairs = pairs
        self.found: dict[Key, Counterexample] = {}
        self.compared = dict.fromkeys(pairs, 0)
        self.seen = dict.fromkeys(pairs, 0)
        self.nearest = dict.fromkeys(pairs, 0.0)
        self.misread: set[Key] = set()
        self.looks = FLOAT_CHECKS

    def run(self, rounds: int, deadline: float) -> None:
        """Try the points that are drawn in so many rounds, while there is time."""
        roots = [s for pair in self.pairs.values() for s in (*pair.hand, *pair.derived)]
        for point in drawn_points(self.view.variables, self._example_values(), roots, rounds):
            if time.process_time() > deadline:
                return
            self.attempt(point, list(self.pairs))

    def _example_values(self) -> dict[Scalar, Fraction]:
        """The values of the examples, where a point has a place for them."""
        found = {}
        for place, scalars in self.view.inputs.items():
            values = self.view.programs.tensors[place].flatten().tolist() or [1.0]
            finite = [v if math.isfinite(v) else 1.0 for v in values]
            for n, scalar in enumerate(scalars):
                found[scalar] = Fraction(finite[n % len(finite)])
        return found

    def attempt(self, point: Point, keys: Sequence[Key]) -> None:
        """Compare the gradients `keys` at `point`."""
        is_moderate = self.looks > 0 and all(abs(v) <= MODERATE for v in point.values())
        values, ran = _Both(point), _NOT_YET
        for key in [key for key in keys if key not in self.found]:
            elements = values.elements(self.pairs[key])
            self.compared[key] += sum(None not in (e.hand, e.derived) for e in elements)
            if not is_moderate and all(e.apart == 0 for e in elements):
                continue
            ran = self._ran(point) if ran is _NOT_YET else ran
            if ran:
                self._judge(key, values, elements, ran)
                self._check_reading(key, elements, ran, is_moderate)
        self.looks -= is_moderate and bool(ran)

    def _ran(self, point: Point) -> Ran:
        """What both programs give at a point; nothing if one of them cannot run there."""
        try:
            return {hand: self.view.run(point, hand=hand) for hand in (True, False)}
        except Exception:  # the refusal is the answer
            return {}

    def _judge(self, key: Key, values: _Both, elements: Sequence[_Element], ran: Ran) -> None:
        worst = sorted(range(len(elements)), key=lambda place: -elements[place].apart)
        for place in worst:
            element = elements[place]
            if element.apart > DIFFERENT and _confirms(element, *self._of(key, place, ran)):
                self.found[key] = self._simplest(key, values, place, ran)
                return
            self.nearest[key] = max(self.nearest[key], element.apart)

    def _of(self, key: Key, place: int, ran: Ran) -> tuple[float, float]:
        """One element as the programs give it: hand-written, and derived."""
        got, expected = (ran[hand].get(key) for hand in (True, False))
        return got[place] if got else 0.0, expected[place] if expected else 0.0

    def _check_reading(
        self, key: Key, elements: Sequence[_Element], ran: Ran, is_moderate: bool
    ) -> None:
        """Note a gradient whose expressions do not give the values of the programs."""
        pairs = [(e, *self._of(key, place, ran)) for place, e in enumerate(elements)]
        sizes = [abs(v) for _, *both in pairs for v in both if math.isfinite(v)]
        allowed = DIFFERENT * max([1.0, *sizes])
        for element, got, expected in pairs:
            for exact, run in ((element.hand, got), (element.derived, expected)):
                if not is_moderate or exact is None or not math.isfinite(run):
                    continue
                self.seen[key] += 1
                if abs(exact - run) > allowed:
                    self.misread.add(key)
            # Infinity, in PyTorch, is a number to compute with. The outputs are finite here.
            if element.is_beyond or (element.is_missing and math.isfinite(expected)):
                self.misread.add(key)

    def _simplest(self, key: Key, values: _Both, place: int, ran: Ran) -> Counterexample:
        """The difference that was found, or one with shorter numbers and all the same cases."""
        got, expected = self._of(key, place, ran)
        for denominator in SIMPLE:
            point = {v: _rounded(x, denominator) for v, x in values.point.items()}
            rounded = _Both(point)
            element = rounded.elements(self.pairs[key])[place]
            if element.apart < READABLE or rounded.signs != values.signs:
                continue
            again = self._ran(point)
            if again and _confirms(element, *self._of(key, place, again)):
                got, expected = self._of(key, place, again)
                return Counterexample(point, place, expected, got)
        return Counterexample(values.point, place, expected, got)


def _rounded(value: Fraction, denominator: int) -> Fraction:
    """The nearest fraction that has this denominator and is not zero."""
    whole = round(value * denominator) or (1 if value > 0 else -1)
    return Fraction(whole, denominator)


def _confirms(element: _Element, got: float, expected: float) -> bool:
    """Whether what the programs give shows the difference that the expressions show."""
    if element.hand is None:
        near = abs(expected - element.derived) <= DIFFERENT * (1 + abs(element.derived))
        return math.isnan(got) and bool(near)
    apart = abs(element.hand - element.derived)
    is_near = abs(got - element.hand) <= apart / 10
    return bool(is_near and abs(expected - element.derived) <= apart / 10)


class _Both:
    """The values of expressions at a point, with fifty digits, and with more where they differ."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.values = Values(point, WORKING_DIGITS)
        self.precise: Values | None = None

    @property
    def signs(self) -> Mapping[Scalar, int]:
        """Which case was taken, of each expression made of cases."""
        return self.values.signs

    def elements(self, pair: GradientPair) -> list[_Element]:
        """Every element of both forms of a gradient."""
        rows = zip(pair.hand, pair.derived, pair.domains, strict=True)
        return [self._element(*row) for row in rows]

    def _element(self, hand: Scalar, derived: Scalar, domain: Sequence[Scalar]) -> _Element:
        missing = [why for _, why in (_value(self.values, o) for o in domain) if why is not None]
        if missing:
            is_beyond = not any(why.is_vague for why in missing)
            return _Element(None, None, 0.0, is_beyond=is_beyond)
        right, why = _value(self.values, derived)
        left, why_not = _value(self.values, hand)
        if right is None:
            return _Element(left, right, 0.0, is_missing=why is not None and not why.is_vague)
        if left is None:
            is_wrong = why_not is not None and why_not.is_outside
            return _Element(left, right, math.inf if is_wrong else 0.0)
        difference, size = abs(left - right), max(abs(left), abs(right))
        if difference <= NO_DIFFERENCE * size or self._is_noise(hand, derived, difference):
            return _Element(left, right, 0.0)
        return _Element(left, right, float(difference / size))

    def _is_noise(self, hand: Scalar, derived: Scalar, difference: Any) -> bool:
        """Whether a difference goes away with more digits."""
        if self.precise is None:
            self.precise = Values(self.point, 2 * WORKING_DIGITS)
        (left, _), (right, _) = _value(self.precise, hand), _value(self.precise, derived)
        if left is None or right is None:
            return True
        return bool(abs(left - right) < difference * NO_DIFFERENCE)


def _value(values: Values, scalar: Scalar) -> tuple[Any, Undefined | None]:
    """The value, or None, and then why."""
    try:
        return values(scalar), None
    except Undefined as undefined:
        return None, undefined
