"""Gradients must be right for other values of the arguments beside the tensors.

What it checks
    Each number halved, doubled, one more and one less, dimensions counted from either end, switches
    turned, `reduction` as mean, sum and none, masks with zeros in them: what forward accepts.

Why it matters
    An option is tried with one value. A mean divides by the length where it should divide by the
    number of kept entries; a segment that is cut shifts all that come after it (FBGEMM#5754).

Fails
    return grad / mask.shape[-1] * mask  # of a mean over the kept entries

Passes
    return grad / mask.sum(-1, keepdim=True) * mask

Cannot see
    Values that only matter together with other ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.inputs.arguments import arguments_of
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported, trials

RULE = Rule(code="V608", name="wrong-at-argument", group="domain", profile="quick")

FIX = "let backward depend on the argument as forward does"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong for another argument."""
    variants = arguments_of(subject.small, subject.names)
    yield from reported(subject, RULE, trials(subject, "arguments", variants), FIX)
