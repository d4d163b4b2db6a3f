"""Gradients must be returned in the order of forward's arguments.

What it checks
    Whether a gradient that is wrong is the gradient of another input of the same shape.

Why it matters
    With inputs of one shape nothing else notices: the engine takes what it gets.

Fails
    return g * a, g * b        # of forward(ctx, a, b): a * b

Passes
    return g * b, g * a

Cannot see
    A swap of two gradients that are equal at the inputs that were tried.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.blamed import wrong_gradients
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.judge.patterns import SWAPPED

RULE = Rule(code="G104", name="swapped-gradients", group="gradient", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong in this way."""
    yield from wrong_gradients(RULE, subject, SWAPPED)
