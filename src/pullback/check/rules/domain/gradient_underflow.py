"""Gradients must be finite at tiny values where forward is right and its true gradient is finite.

What it checks
    Values whose squares underflow, in the dtype of the example: of all inputs, where the truth is
    below 1e9; and, where forward works entry by entry, of one input, up to the end of the dtype.

Why it matters
    A square that underflows to zero in a denominator gives inf or NaN, where forward divides by the
    number itself.

Fails
    return grad * x / (x * x)

Passes
    return grad / x

Cannot see
    A gradient that is zero where it should be tiny. Beside a pole of several inputs at once, what
    is infinite where it should be beyond 1e9: there `-grad * a / b**2` is as good as any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from pullback.check.extremes import value_trials
from pullback.check.inputs.domains import ALONE, FAINT, changed
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported
from pullback.judge.example import Example

RULE = Rule(code="V607", name="gradient-underflow", group="domain", profile="quick")

FIX = (
    "divide twice in the place of dividing by a square, subtract tiny values from no large number, "
    "and guard as forward does"
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong there."""
    found = value_trials(subject, "faint", changed(subject.small_given, FAINT), values=False)
    yield from reported(subject, RULE, found, FIX)
    if _is_by_entry(subject):
        alone = value_trials(subject, "pole", _alone(subject), values=False, steep=math.inf)
        yield from reported(subject, RULE, alone, FIX)


def _alone(subject: Subject) -> Iterator[Example]:
    """One input at a time with values whose squares underflow."""
    start = subject.small_given
    for i in sorted(start.needs)[:ALONE]:
        made = changed(start.need(frozenset({i})), FAINT)
        yield from (example.need(start.needs) for example in made)


def _is_by_entry(subject: Subject) -> bool:
    """Whether outputs and inputs have one shape, and an entry reaches its like alone."""
    run = subject.run(subject.small)
    shapes = {run.args[i].shape for i in subject.small.needs} | {t.shape for t in run.outputs}
    if len(shapes) != 1 or len(run.live) != len(run.outputs) or not run.outputs[0].numel():
        return False
    one = [torch.zeros(output.shape, dtype=output.dtype) for output in run.outputs]
    for cotangent in one:
        cotangent.view(-1)[0] = 1
    usual = subject.reference.gradients(subject.small, one, tuple(sorted(subject.small.needs)))
    found = [grad for grad in (usual or {}).values() if grad is not None]
    return bool(found) and all(not bool(grad.flatten()[1:].any()) for grad in found)
