"""Gradients must be right for small values.

What it checks
    The example times 0.05, 1e-4 and 1e-9, in float64, where differences of forward still tell the
    truth.

Why it matters
    A guard such as `clamp(min=eps)` stands in one of forward and backward and not in the other; or
    numerators cancel, and what is left is noise divided by a small number.

Fails
    return -2 * grad / (r * r * r).clamp(min=1e-3)

Passes
    return -2 * grad / (r * r * r)

Cannot see
    Errors that are small against the cotangent: a gradient that should be tiny and is zero.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.extremes import value_trials
from pullback.check.inputs.domains import SMALL, changed
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported

RULE = Rule(code="V605", name="wrong-when-small", group="domain", profile="quick")

FIX = "let backward do for small numbers what forward does: the same guard, series or rounding"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong there."""
    found = value_trials(subject, "small", changed(subject.small, SMALL))
    yield from reported(subject, RULE, found, FIX)
