"""A gradient must keep its digits where forward keeps them, for saturated values too.

What it checks
    Values from 14 to 20 of either sign, and of 1e-3 to 1e-5, in float32, for a function of one
    tensor that works entry by entry: where forward's output has its digits, depends on the entry,
    and PyTorch's own gradient is right, as the function's in float64 is, none may be lost.

Why it matters
    `1 - sigmoid(x)` is exactly zero from 17 on in float32, `sigmoid(-x)` is not. A loss that is
    still falling then has no gradient at all for the examples that it is surest about.

Fails
    return grad * (torch.sigmoid(x) - 1)  # of softplus(-x)

Passes
    return -grad * torch.sigmoid(-x)

Cannot see
    Outputs that are saturated themselves, as `tanh`'s are: their rounding hides such a gradient.
    Functions of several tensors: a difference from a label cancels by its nature.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
    each,
)
from pullback.check.trials import Trial, is_finite, reported
from pullback.judge.example import Example
from pullback.judge.mismatch import Mismatch, index_of
from pullback.judge.run import copies_of

RULE = Rule(code="V611", name="lost-digits", group="domain", profile="quick")

FIX = "write the difference as one function: sigmoid(-x) for 1 - sigmoid(x), expm1, log1p"

SIZES = {"above 14": (14.0, 20.0), "below -14": (-14.0, -20.0), "of about 1e-4": (1e-3, 1e-5)}
LOST = 0.5  # the share of the entry that must be lost
EXACT = 1e-3  # the error that forward and PyTorch's own gradient may have there
FELT = 0.05  # how much of the output's size a change of the entry by its own size must move


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    start = subject.small
    if subject.fails_at_base or len(start.tensors) != 1 or len(start.needs) != 1:
        return
    if subject.target.intent.has_surrogate or not subject.is_steady:
        return
    if start.args[start.tensors[0]].dtype != torch.float64 or subject.wrong_names:
        return
    for label, (first, last) in each(SIZES.items(), subject):
        example = _example(start, first, last, f"values {label}")
        found = tuple(_lost(subject, example))
        if found:
            yield from reported(subject, RULE, [Trial(example, found)], FIX)
            return


def _example(start: Example, first: float, last: float, label: str) -> Example:
    """The values from `first` to `last`, in float32."""
    (i,) = start.tensors
    value = start.args[i]
    steps = torch.linspace(0, 1, max(value.numel(), 1), dtype=torch.float64)
    values = first * (last / first) ** steps
    return start.put(i, values.reshape(value.shape).float(), label)


def _lost(subject: Subject, example: Example) -> Iterator[Mismatch]:
    (i,) = example.tensors
    try:
        called, exact = subject.run(example), subject.run(example.double())
        if len(called.outputs) != 1 or not called.live or not is_finite(called):
            return
        output, truth = called.outputs[0].detach().double(), exact.outputs[0].detach()
        if output.shape != example.args[i].shape or truth.dtype != torch.float64:
            return
        ones = torch.ones_like(called.outputs[0])
        (got,) = called.pull(copies_of([ones])).values()
        (wide,) = exact.pull([ones.double()]).values()
    except (ForwardRefusedError, BackwardFailedError):
        return
    want = _gradient(subject, example.double(), ones.double(), i)
    usual = _gradient(subject, example, ones, i)
    if got is None or wide is None or want is None or usual is None:
        return
    if not _is_by_entry(subject, example, i):
        return
    value, got = example.args[i].double(), got.detach().double()
    is_exact = (output - truth).abs() <= EXACT * truth.abs()
    is_exact &= (usual - want).abs() <= EXACT * want.abs()
    is_exact &= (wide.detach() - want).abs() <= EXACT * want.abs()
    is_felt = (want * value).abs() >= FELT * truth.abs()
    off = torch.where(is_exact & is_felt & (want != 0), (got - want).abs() / want.abs(), 0.0)
    if bool((off > LOST).any()):
        flat = int(off.flatten().argmax())
        pair = (float(want.flatten()[flat]), float(got.flatten()[flat]))
        wrong, index = int((off > LOST).sum()), index_of(flat, want.shape)
        yield Mismatch(called.names[i], i, index, *pair, wrong, want.numel(), want, got)


def _gradient(subject: Subject, example: Example, ones: Tensor, i: int) -> Tensor | None:
    """PyTorch's own gradient of forward, in float64."""
    found = (subject.reference.gradients(example, [ones], (i,)) or {}).get(i)
    return None if found is None else found.detach().double()


def _is_by_entry(subject: Subject, example: Example, i: int) -> bool:
    """Whether the first output depends on the first entry alone."""
    one = torch.zeros(example.args[i].shape, dtype=torch.float64)
    one.view(-1)[:1] = 1
    found = _gradient(subject, example.double(), one, i)
    return found is not None and not bool(found.flatten()[1:].any())
