"""Gradients must be right for batches of every size.

What it checks
    The leading size of the first tensor as 1, 2, 7, 40 and 130, and what follows it.

Why it matters
    A gradient may be divided by a batch that the example did not have, take only the first element
    of it, or fail beyond an internal step (mmcv#563: batches above `im2col_step` = 32;
    TransformerEngine#3216: wrong only for a batch of two or more).

Fails
    return grad[0] * w  # for a batch of one

Passes
    return grad * w

Cannot see
    Batches larger than those tried.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.inputs.shapes import batches_of
from pullback.check.retrial import by_shape
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported, trials

RULE = Rule(code="S303", name="wrong-at-batch", group="shape", profile="quick")

FIX = "let backward treat each element of the batch alike, whatever their number"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong for another batch."""
    found = trials(subject, "batches", batches_of(subject.small))
    yield from reported(subject, RULE, by_shape(subject, found), FIX)
