"""The names of wrong results: what they have in common says how they came about.

A result that is wrong is wrong by whatever name. The name follows from where results are right, and
from what the wrong ones look like; where nothing more is known, it is "wrong-result".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pullback.candidates import rules
from pullback.candidates.comparing import EntryPattern
from pullback.candidates.rules import JudgeFinding, JudgeRule
from pullback.candidates.trials import GIVEN, LIKE, ZEROS, Trial

ROUNDED = (EntryPattern.ROUNDED_INPUTS, EntryPattern.ROUNDED)

BY_SHAPE = "it is kept by the shapes of its inputs, or from the first call on"


@dataclass(frozen=True, slots=True)
class Result:
    """What a candidate gave in one trial, beside the truth."""

    trial: Trial
    compared: dict[str, Any]
    truth: str = ""  # the digest of what is right

    @property
    def is_right(self) -> bool:
        """Whether all of it is right."""
        return bool(self.compared.get("status") == "right")

    @property
    def pattern(self) -> EntryPattern:
        """What the wrong entries look like."""
        return EntryPattern(self.compared.get("pattern", ""))

    @property
    def digest(self) -> str:
        """The same text for the same numbers."""
        return str(self.compared.get("digest", ""))


def finding_of(rule: JudgeRule, result: Result, why: str = "") -> JudgeFinding:
    """A finding about one result."""
    said = result.compared
    where = f"{said.get('at') or said.get('what', '')} ({result.trial.label()})"
    return JudgeFinding(rule, where, str(said.get("expected", "")), str(said.get("got", "")), why)


def reasons_of(results: Sequence[Result], *, ignored: str = "") -> list[JudgeFinding]:
    """Why results are wrong: one finding, the most telling one; none where all are right.

    `ignored` names a part of the inputs that the candidate does not read and the reference does.
    """
    wrong = [result for result in results if not result.is_right]
    if not wrong:
        return []
    worst = max(wrong, key=lambda r: float(r.compared.get("error", 0.0)))
    ordinary = [result for result in wrong if result.trial.is_ordinary]
    if _is_memorised(results):
        return [finding_of(rules.EXAMPLE_ONLY, ordinary[0])]
    if _is_right_at_zeros_only(results):
        return [finding_of(rules.ZEROS_ONLY, ordinary[0], "other inputs give the same")]
    stale = _stale(results)
    if stale is not None:
        return [finding_of(rules.STALE, stale, BY_SHAPE)]
    if ignored:
        return [finding_of(rules.LEFT_OUT, worst, f"{ignored} is not read")]
    return [_by_place(results, wrong, worst)]


def _is_memorised(results: Sequence[Result]) -> bool:
    """Whether results are right for the given numbers, and for no others, be they the first."""
    given = [r.is_right for r in results if r.trial.values == GIVEN]
    others = [r.is_right for r in results if r.trial.is_ordinary]
    return bool(given) and all(given) and bool(others) and not any(others)


def _is_right_at_zeros_only(results: Sequence[Result]) -> bool:
    """Whether what comes out is right where inputs are zero, and the same elsewhere."""
    zeros = [r.is_right for r in results if r.trial.values == ZEROS]
    others = [r for r in results if r.trial.values in (LIKE, GIVEN) and r.trial.is_at_given_sizes]
    is_one = len({r.compared.get("outputs", r.digest) for r in others}) == 1
    return bool(zeros) and all(zeros) and is_one and not any(r.is_right for r in others)


def _stale(results: Sequence[Result]) -> Result | None:
    """A wrong result that is, to the last bit, one of another trial with another truth."""
    seen: dict[str, Result] = {}
    for result in results:
        before = seen.get(result.digest)
        is_other = before is not None and before.truth != result.truth
        if is_other and not result.is_right and result.pattern is EntryPattern.OTHER:
            return result
        seen.setdefault(result.digest, result)
    return None


def _by_place(results: Sequence[Result], wrong: Sequence[Result], worst: Result) -> JudgeFinding:
    """The finding by where results are right, and by what the wrong entries look like."""
    patterns = {result.pattern for result in wrong}
    usual = [result for result in wrong if result.trial.values in (LIKE, GIVEN)]
    at_given = [result for result in results if result.trial.is_at_given_sizes]
    wrong_there = [result for result in at_given if not result.is_right]
    if at_given and not wrong_there and not any(r.trial.layout for r in wrong if not r.trial.sizes):
        return finding_of(rules.OTHER_SIZES, worst)
    rounded = [result for result in usual if result.pattern in ROUNDED]
    if rounded and 2 * len(rounded) >= len(usual):
        worst = rounded[0]
        name = worst.compared["rounded_to"]
        why = f"the errors are those of {name}, or of an approximation"
        if worst.pattern is EntryPattern.ROUNDED_INPUTS:
            why = f"the errors are those of inputs that were rounded to {name}"
        return finding_of(rules.LOW_PRECISION, worst, why)
    if patterns <= {EntryPattern.ZEROS, EntryPattern.NOT_FINITE}:
        return finding_of(rules.LEFT_OUT, worst, "the wrong entries hold nothing")
    is_gradient = worst.compared.get("is_gradient", False)
    return finding_of(rules.WRONG_GRADIENT if is_gradient else rules.WRONG_RESULT, worst)
