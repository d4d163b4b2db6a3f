"""Gradients must be right for every mask, a full and an empty one too.

What it checks
    Each boolean input in turn with every entry true, with every entry false, with some and with a
    row of them false, where forward takes it and gives finite outputs.

Why it matters
    A batch whose samples are all padding comes once in an epoch. A forward that guards the mean of
    nothing, with a backward that divides by the count, gives NaN to every weight.

Fails
    return grad * mask / mask.sum(), None          # after clamp(min=1) in forward

Passes
    return grad * mask / mask.sum().clamp(min=1), None

Cannot see
    Masks of numbers, which may be weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.inputs.arguments import Variant, masks_of
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported, trials

RULE = Rule(code="V613", name="wrong-at-mask", group="domain", profile="quick")

FIX = "let backward depend on the mask as forward does: on its count, not on the size"
EMPTY = "guard the count or the empty sum in backward as in forward"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong."""
    if subject.target.intent.has_surrogate:
        return
    found = trials(subject, "masks", masks_of(subject.small, subject.names))
    for trial in found:
        is_empty = trial.example.kind is Variant.EMPTY
        yield from reported(subject, RULE, [trial], EMPTY if is_empty else FIX)
