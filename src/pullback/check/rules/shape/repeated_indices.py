"""Gradients must be right for every index, and where indices repeat.

What it checks
    Index tensors and labels that go down to 0, hold each index twice, or one index only, and, where
    forward takes it, the -100 that PyTorch's losses ignore.
    What is called an order or a permutation, and is one, stays one.

Why it matters
    What is read several times gets the sum of the gradients: `scatter` in the place of
    `scatter_add` keeps the last one only (cudnn-frontend#385). A label that forward ignores is 0 as
    often as not.

Fails
    out[index] = grad

Passes
    out.index_add_(0, index, grad)

Cannot see
    Indices beyond the largest one of the example. A backward that raises at the label -100: many a
    sound loss takes it in forward by PyTorch's default only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pullback.capture.indices import is_index
from pullback.check.inputs.arguments import Variant, arguments_of, indices_of
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import Trial, reported, trials
from pullback.judge.example import Example, tensors_in

RULE = Rule(code="S306", name="repeated-indices", group="shape", profile="quick")

FIX = (
    "where forward reads one place several times, add up in backward (`index_add`); where it adds "
    "several into one, give each of them that gradient (`index_select`)"
)

IGNORED = "give entries that forward ignores no gradient, and count only the others"

APART = "treat each index in backward as forward does, one that forward treats apart too"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong for other indices."""
    variants = indices_of(subject.small, subject.names, subject.target.name)
    for trial in trials(subject, "indices", variants):
        if not trial.mismatches or trial.example.kind is Variant.IGNORED:
            yield from reported(subject, RULE, [trial], IGNORED)
        elif _repeats(trial.example):
            yield from reported(subject, RULE, [trial], FIX)
        else:
            yield from reported(subject, RULE, [_by_arguments(subject, trial)], APART)


def _repeats(example: Example) -> bool:
    """Whether an index tensor holds one index twice."""
    return any(len(t.unique()) < t.numel() for t in tensors_in(example.args) if is_index(t))


def _by_arguments(subject: Subject, trial: Trial) -> Trial:
    """The trial without inputs that are wrong for another argument, at the example's indices."""
    others = trials(subject, "arguments", arguments_of(subject.small, subject.names))
    told = {mismatch.name for other in others for mismatch in other.mismatches}
    return replace(trial, mismatches=tuple(m for m in trial.mismatches if m.name not in told))
