"""A gradient must have the sign that forward implies.

What it checks
    Whether a gradient that is wrong is the right one with its sign flipped, in every entry.

Why it matters
    Gradient descent then climbs. The sign is easily lost in a quotient or in `a - b`.

Fails
    return g, g                # of forward a - b

Passes
    return g, -g

Cannot see
    A flip on purpose, as in gradient reversal, which is declared: `declares = {"surrogate": "x"}`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.blamed import wrong_gradients
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.judge.patterns import SIGN

RULE = Rule(code="G102", name="flipped-sign", group="gradient", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong in this way."""
    yield from wrong_gradients(RULE, subject, SIGN)
