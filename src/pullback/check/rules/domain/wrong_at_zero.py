"""Gradients must be right, and finite, at zero.

What it checks
    The example with all values zero and with some zero, all inputs together and each alone; at a
    kink any slope between its sides is right. And zeros and large numbers where a mask among the
    arguments hides an input: `0 * inf` is NaN.

Why it matters
    Padding, masked rows, dead units and fresh biases are zeros. `y / x` for a product and
    `x / norm` give NaN there, and one NaN in one gradient ends a training.

Fails
    return grad * y / x  # of a product over rows

Passes
    return torch.where(norm > 0, grad * x / norm, 0.0)

Cannot see
    Zeros at which forward itself is not finite.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.extremes import value_trials
from pullback.check.inputs.domains import emptied, hidden
from pullback.check.retrial import by_masks, by_zero
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported

RULE = Rule(code="V602", name="wrong-at-zero", group="domain", profile="quick")

MASK = "choose with `where` after the division, on arguments that are safe where they are masked"
FIX = "give the limit of the gradient where the quotient is 0/0"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong there."""
    found = value_trials(subject, "zero", emptied(subject.small))
    yield from reported(subject, RULE, by_zero(subject, found), FIX)
    masked = value_trials(subject, "hidden", hidden(subject.small))
    yield from reported(subject, RULE, by_masks(subject, masked), MASK)
