"""A gradient must flow to every input that the output depends on.

What it checks
    Whether an input that requires grad gets no gradient, or zeros, while forward changes with it.

Why it matters
    The parameters before it are never trained, and the loss still goes down: q and k projections in
    LongLive#61, a denominator in fla#875.

Fails
    return g * scale, None     # of forward x * scale, with a scale that requires grad

Passes
    return g * scale, (g * x).sum()

Cannot see
    A cut on purpose, which is declared: `declares = {"surrogate": "x"}`. In a plain callable a
    `detach` is taken for one; values that leave PyTorch (NumPy, a bare kernel) are not.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.blamed import wrong_gradients
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.judge.patterns import CUT

RULE = Rule(code="G106", name="cut-gradient", group="gradient", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong in this way."""
    yield from wrong_gradients(RULE, subject, CUT)
