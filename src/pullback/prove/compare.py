"""Is a hand-written expression equal to the derived one, wherever that is defined? Case by case.

Where an expression is made of cases, the variables are divided into regions by the signs of the
conditions: in each region both expressions are plain formulas. The regions of all sign patterns
cover everything, so it does no harm that some of them are empty. A region with an equality in it (a
tie) and no volume is the one exception: what is not shown there is a proviso, and does not count
against the rest. Nothing needs to hold where the function itself, the `domain`, is not defined.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.prove.deadline import TimeLimitError, call_within
from pullback.prove.region_formula import Infinite, Nowhere, RegionFormula, Unclear
from pullback.prove.regions import Region, Split, relation
from pullback.prove.scalars import NONNEGATIVE, NONZERO, POSITIVE, Scalar, variables_of
from pullback.prove.signs import Expr
from pullback.prove.zero_sets import is_thin
from pullback.prove.zero_test import vanishes

MOST_REGIONS = 400  # regions


@dataclass(frozen=True, slots=True)
class ShownEqual:
    """The hand-written expression is right wherever the derived one is defined.

    `provisos` say what is left open, on sets without volume, and where there is nothing to show.
    `has_domain` says whether the domain of the function mattered.
    """

    provisos: tuple[str, ...]
    has_domain: bool = False


@dataclass(frozen=True, slots=True)
class NotShown:
    """Nothing is shown: the `reason`, and the region where the proof failed, if it was in one."""

    reason: str
    region: Region | None = None


def compare_expressions(
    hand: Scalar, derived: Scalar, deadline: float, domain: Sequence[Scalar] = ()
) -> ShownEqual | NotShown:
    """Whether the hand-written expression is equal to the derived one.

    `deadline` is a time of `time.process_time`. It matters only where all of `domain` is defined.
    """
    try:
        comparison = _Comparison(hand, derived, domain, deadline)
        return ShownEqual(comparison.run(), comparison.has_domain)
    except _Failed as failed:
        return NotShown(str(failed), failed.region)
    except TimeLimitError:
        return NotShown("time limit")
    except Exception as error:  # sympy has no one class for what it cannot do
        return NotShown(f"sympy gives up: {type(error).__name__}")


class _Failed(Exception):
    def __init__(self, reason: str, region: Region | None = None) -> None:
        Exception.__init__(self, reason)
        self.region = region


class _Comparison:
    """Two expressions, region by region."""

    def __init__(
        self, hand: Scalar, derived: Scalar, domain: Sequence[Scalar], deadline: float
    ) -> None:
        self.hand = hand
        self.derived = derived
        self.domain = domain
        self.deadline = deadline
        self.count = 0
        self.has_domain = False
        self.ties: list[Region] = []
        self.provisos: list[str] = []

    def run(self) -> tuple[str, ...]:
        """The provisos; raises `_Failed` unless both are shown to be equal."""
        variables = variables_of(self.hand, self.derived, *self.domain)
        self._examine(Region.whole(variables), is_tied=False)
        provisos = list(self.provisos)
        for region in self.ties:
            try:
                self._examine(region, is_tied=True)
            except Exception:  # for whatever reason, it is not shown
                provisos.append(f"not shown where {region.conditions[-1]}")
        return tuple(dict.fromkeys(provisos))

    def _examine(self, region: Region, *, is_tied: bool) -> None:
        """Compare both in `region`; raises `_Failed` unless they are shown to be equal there."""
        self.count += 1
        if self.count > MOST_REGIONS:
            raise _Failed("too many cases")
        try:
            self._require_equal(region)
        except Split as split:
            self._divide(region, split.of, is_tied)
        except (_Failed, Unclear) as error:
            self._narrow(region, error, is_tied)

    def _require_equal(self, region: Region) -> None:
        """Return if both are equal in `region`, or if there is nothing to compare with."""
        derived = self._formula(self.derived, region)
        hand = self._formula(self.hand, region)
        if derived is None:
            if hand is not None:
                self.provisos.append(f"the derived gradient is not defined where {region}")
            return
        if hand is None:
            raise _Failed(f"the hand-written gradient is not defined where {region}", region)
        provisos = list(self._poles(hand, derived))
        if not self._is_equal(hand, derived):
            where = f" where {region}" if region.conditions else ""
            raise _Failed(f"no way found to show that both are equal{where}", region)
        self.provisos += provisos

    def _poles(self, hand: RegionFormula, derived: RegionFormula) -> Iterator[str]:
        """What only one of the two needs to be defined.

        The hand-written one may need more than the derived one on a set without volume. If it
        needs more than that, the region is divided where it is not defined.
        """
        for of, rule in hand.needs:
            if not {(of, rule), (of, POSITIVE)} & set(derived.needs):
                is_pole = rule == NONZERO or (of, NONNEGATIVE) in derived.needs
                if not is_pole:
                    hand.region.sign(of)  # raises `Split`, as it is not known
                if not is_thin(of):
                    raise _Failed(f"the hand-written gradient needs {_needed(hand, of, rule)}")
                yield f"the hand-written gradient is defined only where {_needed(hand, of, rule)}"
        for of, rule in derived.needs:
            if not {(of, rule), (of, POSITIVE)} & set(hand.needs):
                yield f"the derived gradient is defined only where {_needed(derived, of, rule)}"

    def _narrow(self, region: Region, error: _Failed | Unclear, is_tied: bool) -> None:
        """Raise `error`, unless the function itself is not defined, here or in a part of it."""
        self.has_domain = bool(self.domain)
        try:
            for scalar in self.domain:
                formula: RegionFormula = self._limited(RegionFormula, scalar, region)
                for of, rule in formula.needs:
                    if rule != NONZERO:
                        self._limited(region.sign, of)
        except Nowhere:
            return
        except Split as split:
            self._divide(region, split.of, is_tied)
            return
        except Unclear as unclear:
            if is_tied and isinstance(unclear, Infinite):
                return  # the edge of where it is defined
        if isinstance(error, Unclear):
            raise _Failed(f"what the gradients are is not clear where {region}", region)
        raise error

    def _divide(self, region: Region, of: Expr, is_tied: bool) -> None:
        for sign in (1, -1, 0):
            part = self._limited(region.assume, of, sign)
            if part is None:
                continue
            if sign or is_tied or not self._limited(is_thin, of):
                self._examine(part, is_tied=is_tied)
            else:
                self.ties.append(part)

    def _is_equal(self, hand: RegionFormula, derived: RegionFormula) -> bool:
        if vanishes(hand.value - derived.value, self.deadline):
            return True
        # Where both are defined, more is known: that logarithms are taken of what is positive.
        for of, rule in {**hand.needs, **derived.needs}:
            part = self._limited(hand.region.assume, of, 1) if rule == POSITIVE else None
            if part is not None and part.facts == hand.region.facts:
                return self._is_equal_in(part)
        return False

    def _is_equal_in(self, region: Region) -> bool:
        try:
            hand, derived = self._formula(self.hand, region), self._formula(self.derived, region)
        except (Split, Unclear):
            return False
        return hand is not None and derived is not None and self._is_equal(hand, derived)

    def _formula(self, scalar: Scalar, region: Region) -> RegionFormula | None:
        """The formula in a region; None where it is defined nowhere."""
        try:
            formula: RegionFormula = self._limited(RegionFormula, scalar, region)
        except Nowhere as nowhere:
            if nowhere.is_nearly:
                self.provisos.append(f"not shown where {region}")
            return None
        return formula

    def _limited(self, function: Callable[..., Any], *args: Any) -> Any:
        return call_within(self.deadline - time.process_time(), function, *args)


def _needed(formula: RegionFormula, of: Expr, rule: str) -> str:
    return relation(formula.region.meant(of), rule)
