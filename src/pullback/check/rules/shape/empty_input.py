"""Gradients must be right, and be given, for inputs without elements.

What it checks
    A batch without elements (the leading size of the first tensor, and what follows it, as 0),
    where forward accepts that: backward raises nothing, gives gradients of the inputs' shapes, and
    gives no NaN to the inputs that have elements.

Why it matters
    The last batch of an epoch, an expert without tokens, an image without boxes: empty tensors are
    everyday, and a mean over nothing or a `max` of nothing ends the training.

Fails
    return grad / len(x) * x.max()

Passes
    return grad * w if x.numel() else torch.zeros_like(x)

Cannot see
    What forward refuses: that is its right. A `reshape` with -1 that is ambiguous without
    elements: PyTorch itself cannot do it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.inputs.shapes import empty_of
from pullback.check.subject.subject import Finding, Rule, Severity, Skip, Subject
from pullback.check.subject.trials import is_new, reported, trials

RULE = Rule("S304", "empty-input", "shape", profile="quick")

AMBIGUOUS = "cannot reshape tensor of 0 elements"

FIX = "return zeros where there is nothing to compute, or refuse the empty input in forward"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong, and one where backward fails."""
    found = trials(subject, "empty", empty_of(subject.small))
    yield from reported(subject, RULE, found, FIX)
    if subject.fails_at_base:
        return
    for trial in found:
        if trial.failure and AMBIGUOUS not in trial.failure.text and is_new(subject, RULE, "empty"):
            yield subject.finding(
                RULE,
                example=trial.example,
                at="backward",
                expected="gradients of the shapes of the inputs",
                got=trial.failure,
                fix=FIX,
                severity=Severity.FRAGILE,
            )
