"""Gradients must be right for every index, and where indices repeat.

What it checks
    Index tensors and labels that go down to 0, hold each index twice, or one index only, and, where
    forward takes it, the -100 that PyTorch's losses ignore; orders of all elements stay orders.

Why it matters
    What is read several times gets the sum of the gradients: `scatter` in the place of
    `scatter_add` keeps the last one only (cudnn-frontend#385). A label that forward ignores is 0 as
    often as not.

Fails
    out[index] = grad

Passes
    out.index_add_(0, index, grad)

Cannot see
    Indices beyond the largest one of the example.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.inputs.arguments import indices_of
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported, trials

RULE = Rule(code="S306", name="repeated-indices", group="shape", profile="quick")

FIX = "add up what belongs to one index: `index_add`, `scatter_add`, `index_put(accumulate=True)`"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong for other indices."""
    found = trials(subject, "indices", indices_of(subject.small))
    yield from reported(subject, RULE, found, FIX)
