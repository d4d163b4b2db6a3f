"""Gradients must be right at negative values, where forward accepts them.

What it checks
    The example with all values negative, and with some signs turned, all inputs together and each
    alone.

Why it matters
    Authors try positive numbers where they think of lengths or probabilities, and forward goes
    through `abs`, a clip or an even power: the sign is then missing in the gradient.

Fails
    return grad / x.abs()  # of log(abs(x))

Passes
    return grad / x

Cannot see
    A negative value that only matters together with a special value of another input.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.extremes import value_trials
from pullback.check.inputs.domains import NEGATIVE, changed
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported

RULE = Rule(code="V601", name="wrong-at-negative", group="domain", profile="quick")

FIX = "carry the sign of the input, and the branch that forward took, into backward"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong there."""
    found = value_trials(subject, "negative", changed(subject.small, NEGATIVE))
    yield from reported(subject, RULE, found, FIX)
