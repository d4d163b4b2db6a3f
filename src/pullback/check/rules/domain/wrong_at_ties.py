"""Gradients must add up to the slope of forward where inputs are tied.

What it checks
    Equal values within rows and between inputs. One element of a tie may get everything, or all of
    them a share; but where the tied elements move together and forward is smooth, the gradients add
    up to its slope. What is wrong next to the tie too is none of a tie's.

Why it matters
    `x == x.max()` gives every one of the tied elements the full gradient, `a < b` none of them.
    Ties are everyday with rounded, clipped, quantised and low-precision values.

Fails
    return grad * (x == y)  # of a maximum

Passes
    return grad * (x == y) / (x == y).sum(-1, keepdim=True)

Cannot see
    Ties of elements that are far apart by the function's own order, such as a median's.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.extremes import value_trials
from pullback.check.inputs.domains import EDGES, changed, tied
from pullback.check.retrial import by_ties, is_finite_number
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported

RULE = Rule(code="V603", name="wrong-at-ties", group="domain", profile="standard")

FIX = "share the gradient among the tied elements, or give it to one of them"

LOST = "guard the quotient that is 0/0 where entries are equal, as forward does"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong there."""
    found = value_trials(subject, "ties", tied(subject.small), ties=True)
    edges = value_trials(subject, "edges", changed(subject.small, EDGES), ties=True)
    for trial in by_ties(subject, [*found, *edges]):
        is_lost = not all(is_finite_number(m.got) for m in trial.mismatches)
        yield from reported(subject, RULE, [trial], LOST if is_lost else FIX)
