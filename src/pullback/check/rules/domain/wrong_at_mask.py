"""A mask that lets everything through, or nothing, must be served.

What it checks
    Each boolean input in turn with every entry true, and with every entry false, where forward
    takes it and gives finite outputs.

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

import torch

from pullback.check.example import Example
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported, trials

RULE = Rule(code="V613", name="wrong-at-mask", group="domain", profile="quick")

FIX = "guard the count or the empty sum in backward as in forward"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong."""
    if subject.target.intent.has_surrogate:
        return
    found = trials(subject, "masks", _variants(subject.small, subject.names))
    yield from reported(subject, RULE, found, FIX)


def _variants(start: Example, names: tuple[str, ...]) -> Iterator[Example]:
    for i in start.tensors:
        mask = start.args[i]
        if mask.dtype == torch.bool and mask.numel():
            for value in (False, True):
                yield start.put(i, torch.full_like(mask, value), f"`{names[i]}` all {value}")
