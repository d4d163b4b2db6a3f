"""Gradients must be finite at large values where forward is right and its true gradient is finite.

What it checks
    Values beyond 120 and 1000 of either sign, and values whose squares overflow, in the dtype of
    the example and in float64; only where forward itself still gives what it gives in float64.

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

from pullback.check.example import Example
from pullback.check.extremes import value_trials
from pullback.check.inputs.domains import HUGE, changed
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported

RULE = Rule(code="V606", name="gradient-overflow", group="domain", profile="standard")

FIX = "write the gradient with what forward is stable with: sigmoid, log_softmax, hypot"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong there."""
    for start in _starts(subject):
        family = f"huge {start.args[start.differentiable[0]].dtype}" if start.differentiable else ""
        found = value_trials(subject, family, changed(start, HUGE), values=False)
        yield from reported(subject, RULE, found, FIX)


def _starts(subject: Subject) -> list[Example]:
    """The example in its own dtype and in float64."""
    same = subject.small_given is subject.small
    return [subject.small] if same else [subject.small_given, subject.small]
