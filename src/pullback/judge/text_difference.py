"""The first difference between the results of two calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from pullback.judge.closeness import (
    Allowance,
    HalfTheDigits,
    largest_number,
    value_difference,
)
from pullback.judge.example import can_differ
from pullback.judge.observed import TOGETHER, Observed
from pullback.judge.tolerances import SMALL
from pullback.judge.trial_rows import TrialRow

Kind = Literal[
    "the program",
    "the call",
    "the self-test",
    "what is returned",
    "output",
    "alone",
    "gradient",
    "second derivative",
]


@dataclass(frozen=True, slots=True)
class TextDifference:
    """The first thing that is not the same: what, for which row, and both sides of it.

    `at` is the index of the worst element. `place` counts outputs, inputs or derivatives. `name` is
    that of the input of a gradient, `by` the outputs that it is pulled back from; of a call that
    raises, `name` is the class of the error. `is_filled` says that a finite gradient of one output
    alone is NaN: what came of the zeros that PyTorch fills in for the outputs that are not used.
    """

    kind: Kind
    row: str
    expected: str
    got: str
    at: str = ""
    place: int = 0
    name: str = ""
    by: str = ""
    is_filled: bool = False

    def of(self, seen: Observed) -> Any:
        """The result that it is about, of another call."""
        if self.kind == "gradient":
            return seen.first[self.by][self.place]
        row = seen.outputs if self.kind == "output" else seen.second
        return None if row is None else row[self.place]

    def facts(self, program: str, other: str) -> dict[str, str]:
        """The facts of an error about it: where, what `program` gives, and what `other` gives."""
        at = f" at {self.at}" if self.at else ""
        got = f"{self.name}: {self.got}" if self.kind == "the call" else self.got
        return {
            "at": f"{self._what()}, for {self.row}",
            "expected": f"{self.expected}{at}, from {program}",
            "got": f"{got}{at}, from {other}",
        }

    def _what(self) -> str:
        if self.kind == "gradient":
            by = self.by if self.by == TOGETHER else f"{self.by} alone"
            return f"the gradient of `{self.name}` by {by}"
        if self.kind == "alone":
            return f"the outputs that require grad where input {self.place} alone does"
        is_counted = self.kind in ("output", "second derivative")
        return f"{self.kind} {self.place}" if is_counted else self.kind


class AbstractMeasure(Protocol):
    """Says how far apart results may be."""

    def allowed(self, result: TextDifference) -> Allowance:
        """How far others may be from one of them."""


@dataclass(frozen=True, slots=True)
class _Half:
    """Half of the digits, whichever result it is."""

    allowance: HalfTheDigits

    def allowed(self, result: TextDifference) -> Allowance:
        return self.allowance


def first_difference(
    expected: Observed,
    found: Observed,
    row: TrialRow,
    names: Sequence[str],
    measure: AbstractMeasure | None = None,
    *,
    eps: float = 0.0,
) -> TextDifference | None:
    """What differs first, if anything; `names` are those of the inputs that need a gradient.

    Without a `measure`, results may differ in half of their digits, or of those of a coarser dtype
    in between, whose rounding is `eps`.
    """
    if found.error:
        return TextDifference("the call", row.what, "a result", found.error, name=found.error_type)
    theirs, mine = len(expected.outputs), len(found.outputs)
    if theirs != mine:
        return TextDifference("what is returned", row.what, f"{theirs} outputs", f"{mine} outputs")
    for place, pair in enumerate(zip(expected.live, found.live, strict=True)):
        if pair[0] != pair[1]:
            one, two = (f"requires_grad={is_live}" for is_live in pair)
            return TextDifference("output", row.what, one, two, place=place)
    for place in expected.alone.keys() & found.alone.keys():
        one, two = f"{expected.alone[place]}", f"{found.alone[place]}"
        if one != two:
            return TextDifference("alone", row.what, one, two, place=place)
    values = list(_values(expected, found, row, names))
    floor = SMALL * max([1.0, *(largest_number(theirs) for _, theirs, _ in values)])
    measure = measure or _Half(HalfTheDigits(floor, is_ignored=not row.is_usual, eps=eps))
    return _first_value(values, row, measure)


def _first_value(
    values: Sequence[tuple[TextDifference, Any, Any]], row: TrialRow, measure: AbstractMeasure
) -> TextDifference | None:
    for one, theirs, mine in values:
        known = _spread(theirs, mine) if row.has_nan else theirs
        found = value_difference("", mine, known, measure.allowed(one))
        if found is not None:
            is_filled = one.by not in ("", TOGETHER) and _is_nan_alone(mine, theirs)
            one = replace(one, expected=found.expected, got=found.got, at=found.at)
            return replace(one, is_filled=is_filled)
    return None


def _is_nan_alone(mine: Any, theirs: Any) -> bool:
    """Whether the one gradient has a NaN where the other is finite."""
    if not can_differ(mine) or not can_differ(theirs) or mine.shape != theirs.shape:
        return False
    return bool((mine.isnan() & theirs.isfinite()).any())


def _values(
    expected: Observed, found: Observed, row: TrialRow, names: Sequence[str]
) -> Iterator[tuple[TextDifference, Any, Any]]:
    """The values that are compared: what they are, as a difference, and both sides of them."""
    one = TextDifference("output", row.what, "", "")
    for place, pair in enumerate(zip(expected.outputs, found.outputs, strict=True)):
        yield replace(one, place=place), *pair
    whole = expected.first.get(TOGETHER, [])
    # Those of all outputs together come first.
    for by in sorted(expected.first, key=lambda by: by != TOGETHER):
        if row.has_nan or (by != TOGETHER and not row.is_usual):
            continue
        gradients = zip(names, expected.first[by], found.first[by], whole, strict=True)
        for place, (name, theirs, mine, all_of_it) in enumerate(gradients):
            sides = theirs, mine
            if row.fills_absent and by != TOGETHER:
                sides = _where_finite(theirs, all_of_it), _where_finite(mine, all_of_it)
            yield replace(one, kind="gradient", place=place, name=name, by=by), *sides
    is_second = row.is_usual and not row.has_nan
    if is_second and expected.second is not None and found.second is not None:
        for place, pair in enumerate(zip(expected.second, found.second, strict=True)):
            yield replace(one, kind="second derivative", place=place), *pair


def _where_finite(gradient: Any, whole: Any) -> Any:
    """The gradient of one output, but for where that of all outputs together is not finite.

    There one of them has an infinite slope. A node of several outputs multiplies that by the zeros
    of a cotangent that is absent; the ops of a program are not even run.
    """
    both = isinstance(gradient, Tensor) and isinstance(whole, Tensor)
    if not both or gradient.shape != whole.shape:
        return gradient
    return gradient.where(whole.isfinite(), torch.zeros_like(gradient))


def _spread(expected: Any, got: Any) -> Any:
    """`expected`, with what is not finite in `got` in its place: NaN may spread, not vanish."""
    if not can_differ(got) or not can_differ(expected):
        return expected
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return expected
    return torch.where(got.isfinite(), expected, got)
