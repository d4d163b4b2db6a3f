"""An input that forward broadcasts must get the gradient summed over its copies.

What it checks
    Of inputs with one shape, in a function that works entry by entry, each in turn is given with a
    size of 1, or with the leading dimension missing, where forward takes it: its gradient is the
    sum over what was broadcast, and backward raises nothing.

Why it matters
    `a * b` takes a row as well as a matrix. The engine sums a gradient of the full shape by itself,
    and so a shortcut such as `grad[:1]`, or a `reshape`, turns a right backward into a wrong one.

Fails
    if b.shape[0] == 1: grad_b = (grad * a)[:1]

Passes
    grad_b = (grad * a).sum_to_size(b.shape)

Cannot see
    Functions that mix entries, where inputs of unequal shape are most often a caller's mistake.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pullback.check.subject.entries import common_shape, is_by_entry
from pullback.check.subject.subject import (
    CallError,
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

RULE = Rule("S309", "broadcast-input", "shape", profile="quick")

FIX = "sum the gradient over what was broadcast: grad.sum_to_size(x.shape)"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong or not given once it is broadcast."""
    if subject.fails_at_base or not subject.is_steady or subject.writes_inputs:
        return
    start = _written_out(subject.small)
    try:
        shape = common_shape(subject, start) if len(start.differentiable) > 1 else None
        if shape is None or not 1 <= len(shape) <= 4 or not is_by_entry(subject, start):
            return
    except CallError:
        return  # what was written out is not taken
    for i, variant in each(_variants(start, shape), subject):
        trial = trial_of(subject, variant) if _has_shape(subject, variant, shape) else None
        if trial is None:
            continue
        name = subject.names[i]
        if trial.failure and start is subject.small and is_new(subject, RULE, name):
            yield subject.finding(
                RULE,
                example=variant,
                at=f"backward, with `{name}` broadcast",
                expected="gradients, since forward takes these shapes",
                got=trial.failure,
                severity=Severity.FRAGILE,
                fix=FIX,
            )
        for mismatch in trial.mismatches:
            if mismatch.name == name and is_new(subject, RULE, name):
                yield subject.mismatched(RULE, mismatch, variant, fix=FIX)


def _written_out(example: Example) -> Example:
    """The example with inputs of less rank, which broadcast, in the shape of the largest one."""
    shapes = [example.args[i].shape for i in example.differentiable]
    largest = max(shapes, key=len, default=torch.Size())
    for i in example.differentiable:
        value = example.args[i]
        if value.dim() < len(largest) and value.dim() and value.shape == largest[-value.dim() :]:
            example = example.put(i, value.expand(largest).clone(), example.label)
    return example


def _variants(example: Example, shape: torch.Size) -> Iterator[tuple[int, Example]]:
    """Each input in turn as one row, as one column, and without its leading dimension."""
    for i in example.needs:
        value = example.args[i]
        for dim in dict.fromkeys((0, len(shape) - 1)):
            if shape[dim] > 1:
                label = f"argument {i} with size 1 in dimension {dim}"
                yield i, example.put(i, value.narrow(dim, 0, 1).clone(), label)
        if len(shape) > 1:
            yield i, example.put(i, value[0].clone(), f"argument {i} without dimension 0")


def _has_shape(subject: Subject, variant: Example, shape: torch.Size) -> bool:
    """Whether forward takes a variant and gives outputs of the same shape as before."""
    try:
        run = subject.run(variant)
    except ForwardRefusedError:
        return False
    return bool(run.live) and all(run.outputs[i].shape == shape for i in run.live)
