"""Findings about wrong gradients at the examples, with the reason where it can be found."""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.finding import Finding, Rule, Skip
from pullback.check.reasons import Reason, reason_of, right_backward
from pullback.check.subject import Subject
from pullback.judge.patterns import FACTOR, REDUCTION, VALUES

# Patterns that say how a gradient is wrong and not where: the others are a reason already.
UNEXPLAINED = (VALUES, REDUCTION, FACTOR)

REPLACE = "return what the derived backward returns"
LONG = 80  # an edit that takes more letters is harder to read than the backward below it


def wrong_gradients(rule: Rule, subject: Subject, kind: str) -> Iterator[Finding | Skip]:
    """One finding for each gradient that is wrong at the examples by the pattern `kind`."""
    if subject.fails_at_base:
        yield Skip.refused(rule, "backward fails at the example", subject.fails_at_base)
        return
    for mismatch in subject.base_mismatches:
        pattern = subject.patterns[mismatch.name]
        if pattern.kind == kind:
            known = reason_of(subject, mismatch.name) if kind in UNEXPLAINED else Reason()
            backward = right_backward(subject)
            edit = known.fix if len(known.fix) <= LONG or not backward else REPLACE
            if kind == FACTOR and "`" not in edit:
                edit = pattern.fix  # it names the input at least
            yield subject.mismatched(
                rule,
                mismatch,
                subject.base,
                why=pattern.why if kind == FACTOR else known.why or pattern.why,
                fix=edit or pattern.fix or (REPLACE if backward else ""),
                place=known.place,
                facts={"backward": backward} if backward else {},
            )
