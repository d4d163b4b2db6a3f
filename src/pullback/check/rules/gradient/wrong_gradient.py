"""Each gradient must be the one that forward implies.

What it checks
    The gradient of every input, entry by entry, for random cotangents in float64, against forward
    differentiated by autograd; what differs is settled by differences of the real forward, whose
    error is estimated.

Why it matters
    Training goes on with a wrong gradient, only worse. Two of the three examples that this project
    started from were wrong and nobody noticed; in quack#53 a sum and a product stood in the wrong
    order, in FA#2541 one of three gradients was corrupted.

Fails
    return 2 * sine * torch.cos(sine) * g      # the saved sine where the input is needed

Passes
    return 2 * torch.sin(x) * torch.cos(x) * g

Cannot see
    A forward that computes something else than its author meant: forward is taken as the truth.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.blamed import wrong_gradients
from pullback.check.explaining import Cause
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.judge.patterns import VALUES

RULE = Rule(code="G101", name="wrong-gradient", group="gradient", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong in this way."""
    yield from wrong_gradients(RULE, subject, VALUES)


EXPLAINS = (
    Cause(
        frozenset({"linearity"}),
        "the same edit mends that too",
        rank=180,
        holds=lambda finding: finding.about.is_explained,  # by an edit tried with large cotangents
    ),
)
