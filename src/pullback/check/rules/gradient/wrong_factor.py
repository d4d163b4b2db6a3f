"""A gradient must have the size that forward implies.

What it checks
    Whether a gradient that is wrong is a constant multiple of the right one.

Why it matters
    A factor acts as another learning rate for one input only, and hides there for years.

Fails
    return x * g               # of forward x * x

Passes
    return 2 * x * g

Cannot see
    A factor of one.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.blamed import wrong_gradients
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.judge.patterns import FACTOR

RULE = Rule(code="G103", name="wrong-factor", group="gradient", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong in this way."""
    yield from wrong_gradients(RULE, subject, FACTOR)
