"""Gradients must be right at every rank that forward accepts.

What it checks
    A leading dimension more for every floating tensor or for the first alone, and two more; in the
    profile "deep" also one less, and tensors of no dimension.

Why it matters
    A backward that names its dimensions (`sum(0)`, `grad.t()`, rows and columns as for a matrix)
    is right for the rank its author had in mind; forward broadcasts and takes the others too
    (FlagGems#5392: wrong gradients and writes out of bounds for rank 3 and more).

Fails
    return grad @ w, (grad * x).sum(0)

Passes
    return grad @ w, (grad * x).sum(tuple(range(x.dim() - 1)))

Cannot see
    Ranks that forward refuses: that is its right.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.inputs.shapes import lower_ranks_of, ranks_of
from pullback.check.retrial import by_shape
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported, trials

RULE = Rule(code="S302", name="wrong-at-rank", group="shape", profile="quick")

FIX = "count dimensions from the end, sum over all leading ones, or refuse the rank in forward"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong at another rank."""
    found = trials(subject, "ranks", ranks_of(subject.small))
    yield from reported(subject, RULE, by_shape(subject, found), FIX)
    if subject.profile == "deep":
        found = trials(subject, "lower ranks", lower_ranks_of(subject.small))
        yield from reported(subject, RULE, by_shape(subject, found), FIX)
