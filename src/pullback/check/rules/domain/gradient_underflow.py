"""Gradients must be finite at tiny values where forward is right and its true gradient is finite.

What it checks
    Values whose squares underflow, in the dtype of the example.

Why it matters
    A square that underflows to zero in a denominator gives inf or NaN, where forward divides by the
    number itself.

Fails
    return grad * x / (x * x)

Passes
    return grad / x

Cannot see
    A gradient that is zero where it should be tiny. A gradient that is infinite where it should be
    beyond 1e9: next to a pole `-grad * a / b**2` is as good as any.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.extremes import value_trials
from pullback.check.inputs.domains import FAINT, changed
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported

RULE = Rule(code="V607", name="gradient-underflow", group="domain", profile="quick")

FIX = "divide twice in the place of dividing by a square, and guard as forward does"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong there."""
    found = value_trials(subject, "faint", changed(subject.small_given, FAINT), values=False)
    yield from reported(subject, RULE, found, FIX)
