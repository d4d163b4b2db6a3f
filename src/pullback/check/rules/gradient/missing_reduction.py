"""A gradient must be summed over what forward broadcast or reduced.

What it checks
    Whether a gradient that is wrong is the mean where the sum is needed (or the reverse), or one
    number for all entries.

Why it matters
    The engine sums a gradient that is too large to the shape of the input in silence, so a mean
    over the wrong dimension has the right shape and the wrong size.

Fails
    return g, g.mean(0)        # of forward x + bias

Passes
    return g, g.sum(0)

Cannot see
    A reduction over a dimension of size one.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.blamed import wrong_gradients
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.judge.patterns import REDUCTION

RULE = Rule(code="G105", name="missing-reduction", group="gradient", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong in this way."""
    yield from wrong_gradients(RULE, subject, REDUCTION)
