"""Gradients must be right far away from the example.

What it checks
    The example times 4, 20 and 1000, and shifted above 30 and below -30, in float64; and values
    that turned out to be wrong while sizes and ties were tried.

Why it matters
    Functions have pieces: a clip at 6, a linear tail beyond 10, a threshold at 20. Standard normal
    examples never reach them, and the gradient of the piece beyond is that of the one before.

Fails
    return grad * (x > 0)  # of clamp(x, 0, 6)

Passes
    return grad * ((x > 0) & (x < 6))

Cannot see
    Pieces beyond the values tried.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.extremes import value_trials
from pullback.check.inputs.domains import FAR, SHIFTED, changed
from pullback.check.retrial import set_aside
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported

RULE = Rule(code="V604", name="wrong-far-out", group="domain", profile="standard")

FIX = "give backward every piece that forward has, with the same bounds"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong there."""
    variants = changed(subject.small, {**FAR, **SHIFTED})
    yield from reported(subject, RULE, value_trials(subject, "far", variants), FIX)
    yield from reported(subject, RULE, set_aside(subject), FIX)
