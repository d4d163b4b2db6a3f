"""Gradients must be right beside entries that are infinite or NaN, where forward is finite.

What it checks
    Some entries as NaN, and as -inf and inf where there is one differentiable input; only where
    every output is finite all the same: the gradients of the other entries against the truth, and
    those of the odd entries, which forward leaves out, against zero.

Why it matters
    A masked score is -inf, a missing value is NaN. `softmax`, `logsumexp`, `clamp` and `nansum`
    take them; a product with zero in backward gives `0 * inf`, and one NaN spoils every weight.

Fails
    return (grad * y * x).sum(-1)  # y is 0 where x is -inf

Passes
    return (grad * torch.where(y > 0, y * x, 0.0)).sum(-1)

Cannot see
    Entries at which PyTorch's own gradient of forward is not finite either. Infinities in one of
    several inputs: an angle or a gate saturates there, and nobody means it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.extremes import value_trials
from pullback.check.inputs.domains import INFINITE, MISSING, changed
from pullback.check.retrial import by_masks
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported

RULE = Rule(code="V609", name="wrong-at-infinity", group="domain", profile="quick")

FIX = "choose with `where` what an infinite or missing entry gets: 0 times infinity is NaN"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong there."""
    changes = {**INFINITE, **MISSING} if len(subject.small.needs) == 1 else MISSING
    found = value_trials(subject, "infinite", changed(subject.small, changes))
    yield from reported(subject, RULE, by_masks(subject, found), FIX)
