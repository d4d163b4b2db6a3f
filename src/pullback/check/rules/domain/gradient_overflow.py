"""Gradients must be finite at large values where forward is right and its true gradient is finite.

What it checks
    Values beyond 120 and 1000 of either sign, in the dtype of the example and in float64, and
    values whose squares overflow in float32; only where forward itself still gives what it gives
    in float64.

Why it matters
    `exp(x) / (1 + exp(x))` is inf/inf from 89 on in float32, though forward, by `softplus`, is
    right. One large logit makes every weight NaN.

Fails
    e = torch.exp(x); return grad * e / (1 + e)

Passes
    return grad * torch.sigmoid(x)

Cannot see
    Values at which forward itself overflows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pullback.check.extremes import value_trials
from pullback.check.inputs.domains import HUGE, SQUARES, Change, changed
from pullback.check.inputs.dtypes import dtype_of, in_dtype
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported
from pullback.judge.example import Example

RULE = Rule(code="V606", name="gradient-overflow", group="domain", profile="quick")

FIX = "write the gradient with what forward is stable with: sigmoid, log_softmax, hypot"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong there."""
    for family, start, changes in _starts(subject):
        found = value_trials(subject, f"huge {family}", changed(start, changes), values=False)
        yield from reported(subject, RULE, found, FIX)


def _starts(subject: Subject) -> Iterator[tuple[str, Example, dict[str, Change]]]:
    """The example as given and in float64, each with values whose truth can be known there.

    In float64 nothing tells whether forward itself has overflowed.
    """
    if not subject.small.differentiable:
        return
    below = {label: change for label, change in HUGE.items() if label != SQUARES}
    low = subject.small_given
    if dtype_of(low) != torch.float64:
        yield "given", low, HUGE
    else:
        single = in_dtype(low, torch.float32)
        if single is not None:
            yield "float32", single, {SQUARES: HUGE[SQUARES]}
    if dtype_of(subject.small) == torch.float64:
        yield "float64", subject.small, below
