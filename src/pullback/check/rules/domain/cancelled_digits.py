"""Gradients in float32 whose digits cancel on the way, where forward keeps its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from pullback.check.findings.registered import Registered
from pullback.check.subject.behaved import approximates, goes_on_otherwise
from pullback.check.subject.subject import CallError, Finding, Rule, Skip, Subject, each
from pullback.check.subject.trials import TriedVariant, is_finite, reported
from pullback.judge.example import Example
from pullback.judge.mismatch import Mismatch, index_of
from pullback.judge.run import copies_of

LOST_DIGITS = Rule("V611", "lost-digits", "domain", profile="quick")
FAR_FROM_ZERO = Rule("V612", "far-from-zero", "domain", profile="quick")

ONE_FUNCTION = "write the difference as one function: sigmoid(-x) for 1 - sigmoid(x), expm1, log1p"
SIZES = {"above 14": (14.0, 20.0), "below -14": (-14.0, -20.0), "of about 1e-4": (1e-3, 1e-5)}
LOST_OF_ENTRY = 0.5  # the share of the entry that must be lost
EXACT_ENTRY = 1e-3  # the error that forward and PyTorch's own gradient may have there
FELT = 0.05  # how much of the output's size a change of the entry by its own size must move
SHIFTS = (1000.0, 4000.0)
LOST_OF_LARGEST = 0.02  # of the largest entry
TIMES = 30  # as far off as PyTorch's own gradient
EXACT_OUTPUT = 1e-2  # how far forward in float32 may be off
MEAN_FIRST = "subtract the mean first, then square: (x - mean).square().mean()"


def lost_digits(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    start = subject.small
    if subject.fails_at_base or len(start.tensors) != 1 or len(start.needs) != 1:
        return
    if subject.target.intent.has_surrogate or not subject.is_steady:
        return
    value = start.args[start.tensors[0]]
    if value.dtype != torch.float64 or not value.numel() or subject.wrong_names:
        return
    for label, (first, last) in each(SIZES.items(), subject):
        example = _example(start, first, last, f"values {label}")
        found = tuple(_lost_in_saturation(subject, example))
        if found:
            yield from reported(subject, LOST_DIGITS, [TriedVariant(example, found)], ONE_FUNCTION)
            return


def _example(start: Example, first: float, last: float, label: str) -> Example:
    """The values from `first` to `last`, in float32."""
    (i,) = start.tensors
    value = start.args[i]
    steps = torch.linspace(0, 1, value.numel(), dtype=torch.float64)
    values = first * (last / first) ** steps
    return start.put(i, values.reshape(value.shape).float().to(value.device), label)


def _lost_in_saturation(subject: Subject, example: Example) -> Iterator[Mismatch]:
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
    except CallError:
        return
    want = _gradient(subject, example.double(), ones.double(), i)
    usual = _gradient(subject, example, ones, i)
    if got is None or wide is None or want is None or usual is None:
        return
    if not _is_by_entry(subject, example, i):
        return
    value, got = example.args[i].double(), got.detach().double()
    is_exact = (output - truth).abs() <= EXACT_ENTRY * truth.abs()
    is_exact &= (usual - want).abs() <= EXACT_ENTRY * want.abs()
    is_exact &= (wide.detach() - want).abs() <= EXACT_ENTRY * want.abs()
    is_felt = (want * value).abs() >= FELT * truth.abs()
    off = torch.where(is_exact & is_felt & (want != 0), (got - want).abs() / want.abs(), 0.0)
    if bool((off > LOST_OF_ENTRY).any()):
        yield _worst(subject, i, want, got, off, LOST_OF_ENTRY)


def _gradient(subject: Subject, example: Example, ones: Tensor, i: int) -> Tensor | None:
    """PyTorch's own gradient of forward, in float64."""
    found = (subject.reference.gradients(example, [ones], (i,)) or {}).get(i)
    return None if found is None else found.detach().double()


def _is_by_entry(subject: Subject, example: Example, i: int) -> bool:
    """Whether the first output depends on the first entry alone."""
    one = torch.zeros_like(example.args[i], dtype=torch.float64)
    one.view(-1)[:1] = 1
    found = _gradient(subject, example.double(), one, i)
    return found is not None and not bool(found.flatten()[1:].any())


def far_from_zero(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    start = subject.small
    if subject.fails_at_base or subject.target.intent.has_surrogate or not subject.is_steady:
        return
    if any(start.args[i].dtype != torch.float64 for i in start.differentiable):
        return
    for i, shift in each(product(sorted(start.needs), SHIFTS), subject):
        label = f"`{subject.names[i]}` around {shift:g}"
        example = start.to(torch.float32).put(i, start.args[i].float() + shift, label)
        found = tuple(_lost_far_out(subject, example, i))
        if found and not approximates(subject) and not goes_on_otherwise(subject, example):
            yield from reported(subject, FAR_FROM_ZERO, [TriedVariant(example, found)], MEAN_FIRST)
            return


def _lost_far_out(subject: Subject, example: Example, i: int) -> Iterator[Mismatch]:
    name = subject.names[i]
    try:
        called, exact = subject.run(example), subject.run(example.double())
        cotangents = subject.cotangents(called)
        wide = [None if c is None else c.double() for c in cotangents]
        got, right = called.pull(cotangents)[name], exact.pull(wide)[name]
    except CallError:
        return
    for k in called.live:
        if not _is_near(called.outputs[k], exact.outputs[k], EXACT_OUTPUT):
            return
    want = (subject.reference.gradients(example.double(), wide, (i,)) or {}).get(i)
    usual = (subject.reference.gradients(example, cotangents, (i,)) or {}).get(i)
    if got is None or right is None or want is None or usual is None or not want.numel():
        return
    if got.shape != want.shape or not _is_near(right, want, 1e-5):
        return
    scale = float(want.abs().max())
    off, theirs = ((g.detach().double() - want).abs() for g in (got, usual))
    off = torch.nan_to_num(off, nan=float("inf"))
    limit = LOST_OF_LARGEST * scale
    if scale > 0 and float(off.max()) > max(limit, TIMES * float(theirs.max())):
        yield _worst(subject, i, want, got, off, limit)


def _is_near(one: Tensor, two: Tensor, share: float) -> bool:
    """Whether two tensors are the same up to a share of the largest entry."""
    a, b = one.detach().double(), two.detach().double()
    if a.shape != b.shape or not bool(torch.isfinite(b).all()):
        return False
    return not a.numel() or float((a - b).abs().max()) <= share * float(b.abs().max())


def _worst(
    subject: Subject, i: int, want: Tensor, got: Tensor, off: Tensor, limit: float
) -> Mismatch:
    """The gradient of input `i`, wrong where it is off by more than a limit, at its worst entry."""
    flat = int(off.flatten().argmax())
    pair = (float(want.flatten()[flat]), float(got.flatten()[flat]))
    wrong, index = int((off > limit).sum()), index_of(flat, want.shape)
    return Mismatch(subject.names[i], i, index, *pair, wrong, want.numel(), want, got)


RULES = (
    Registered(
        LOST_DIGITS,
        lost_digits,
        page="""
A gradient must keep its digits where forward keeps them, for saturated values too.

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
""",
    ),
    Registered(
        FAR_FROM_ZERO,
        far_from_zero,
        page="""
A gradient must keep its digits where all values lie far from zero.

What it checks
    Each input in turn shifted by 1000 and by 4000, in float32: where forward's output and PyTorch's
    own gradient keep their digits, and the function's gradient in float64 is right, its gradient in
    float32 is no more than a few times as far off as PyTorch's.

Why it matters
    `E[x^2] - E[x]^2` is the variance on paper. For a mean of 1000 and a deviation of 1 it is the
    difference of two numbers near a million, of which float32 has no digit left.

Fails
    variance = (x * x).mean(-1) - x.mean(-1) ** 2

Passes
    variance = x.var(-1, unbiased=False)

Cannot see
    Functions whose forward loses the digits as well.
""",
    ),
)
