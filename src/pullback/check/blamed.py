"""Findings about wrong gradients at the examples, with the reason where it can be found."""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.finding import Finding, Rule, Skip
from pullback.check.subject import Subject


def wrong_gradients(rule: Rule, subject: Subject, kind: str) -> Iterator[Finding | Skip]:
    """One finding for each gradient that is wrong at the examples by the pattern `kind`."""
    if subject.fails_at_base:
        yield Skip(rule, f"backward fails at the example: {subject.fails_at_base}")
        return
    for mismatch in subject.base_mismatches:
        pattern = subject.patterns[mismatch.name]
        if pattern.kind == kind:
            yield subject.mismatched(rule, mismatch, subject.base, why=pattern.why, fix=pattern.fix)
