"""Negative indices that forward takes must be served in backward.

What it checks
    Each tensor of indices in turn with its last entry as -1, where the output is then that of the
    last row itself: the gradients are right. In the profile deep, backward raises nothing either.

Why it matters
    `x[index]` counts from the end, and `index == rows` finds nothing for -1: the last row then
    has no gradient. A kernel writes before the start of its memory.

Fails
    return (rows[:, None] == index).to(grad) @ grad, None          # after x[index]

Passes
    index = torch.where(index < 0, index + n, index)

Cannot see
    Functions in which a negative number has another meaning than "from the end". A backward that
    raises, but in the profile deep: that is late, and loud.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.capture.indices import is_index
from pullback.check.inputs.values import is_permutation
from pullback.check.subject.subject import (
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
    each,
)
from pullback.check.subject.trials import is_new, trial_of
from pullback.judge.example import Example

RULE = Rule("S310", "negative-index", "shape", profile="quick")

FIX = "make negative indices positive in forward, or refuse them"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per tensor of indices."""
    if subject.fails_at_base or not subject.is_steady or subject.writes_inputs:
        return
    for i, negative, last in each(_variants(subject.small), subject):
        if not _is_from_end(subject, negative, last):
            continue
        trial = trial_of(subject, negative)
        if trial is None:
            continue
        name = subject.names[i]
        if trial.failure and subject.profile == "deep" and is_new(subject, RULE, name):
            yield subject.finding(
                RULE,
                example=negative,
                at=f"backward, with -1 in `{name}`",
                expected="gradients, since forward counts from the end",
                got=trial.failure,
                severity=Severity.FRAGILE,
                fix=FIX,
            )
        for mismatch in trial.mismatches:
            if is_new(subject, RULE, mismatch.name):
                yield subject.mismatched(RULE, mismatch, negative, fix=FIX)


def _variants(start: Example) -> Iterator[tuple[int, Example, Example]]:
    """Each tensor of indices with -1 for its last entry, and the same with each last index."""
    sizes = sorted({s for j in start.differentiable for s in start.args[j].shape if s > 1})
    for i in start.tensors:
        index = start.args[i]
        if not is_index(index) or not index.dtype.is_signed or not index.numel():
            continue
        if int(index.min()) < 0 or is_permutation(index):
            continue
        for size in sizes:
            if int(index.max()) < size:
                negative = start.put(i, _ending(index, -1), f"argument {i} with -1 as its last")
                yield i, negative, start.put(i, _ending(index, size - 1), "the last index")


def _ending(index: Tensor, value: int) -> Tensor:
    made = index.clone(memory_format=torch.contiguous_format)
    made.view(-1)[-1] = value
    return made


def _is_from_end(subject: Subject, negative: Example, last: Example) -> bool:
    """Whether -1 means the last index: both give the same outputs, and others than at 0."""
    try:
        one, two = subject.run(negative), subject.run(last)
    except ForwardRefusedError:
        return False
    pairs = [(one.outputs[k], two.outputs[k]) for k in two.live if k < len(one.outputs)]
    return bool(pairs) and all(torch.equal(a, b) for a, b in pairs)
