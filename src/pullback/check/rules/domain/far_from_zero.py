"""A gradient must keep its digits where all values lie far from zero.

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
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

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
from pullback.check.trials import Trial, reported
from pullback.judge.example import Example
from pullback.judge.mismatch import Mismatch, index_of

RULE = Rule(code="V612", name="far-from-zero", group="domain", profile="quick")

SHIFTS = (1000.0, 4000.0)
LOST = 0.02  # of the largest entry
TIMES = 30  # as far off as PyTorch's own gradient
EXACT = 1e-2  # how far forward in float32 may be off

FIX = "subtract the mean first, then square: (x - mean).square().mean()"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    start = subject.small
    if subject.fails_at_base or subject.target.intent.has_surrogate or not subject.is_steady:
        return
    if any(start.args[i].dtype != torch.float64 for i in start.differentiable):
        return
    for i, shift in each(product(sorted(start.needs), SHIFTS), subject):
        label = f"`{subject.names[i]}` around {shift:g}"
        example = start.to(torch.float32).put(i, start.args[i].float() + shift, label)
        found = tuple(_lost(subject, example, i))
        if found:
            yield from reported(subject, RULE, [Trial(example, found)], FIX)
            return


def _lost(subject: Subject, example: Example, i: int) -> Iterator[Mismatch]:
    name = subject.names[i]
    try:
        called, exact = subject.run(example), subject.run(example.double())
        cotangents = subject.cotangents(called)
        wide = [None if c is None else c.double() for c in cotangents]
        got, right = called.pull(cotangents)[name], exact.pull(wide)[name]
    except (ForwardRefusedError, BackwardFailedError):
        return
    for k in called.live:
        if not _is_near(called.outputs[k], exact.outputs[k], EXACT):
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
    if scale > 0 and float(off.max()) > max(LOST * scale, TIMES * float(theirs.max())):
        flat = int(off.flatten().argmax())
        pair = (float(want.flatten()[flat]), float(got.flatten()[flat]))
        wrong, index = int((off > LOST * scale).sum()), index_of(flat, want.shape)
        yield Mismatch(name, i, index, *pair, wrong, want.numel(), want, got)


def _is_near(one: Tensor, two: Tensor, share: float) -> bool:
    """Whether two tensors are the same up to a share of the largest entry."""
    a, b = one.detach().double(), two.detach().double()
    if a.shape != b.shape or not bool(torch.isfinite(b).all()):
        return False
    return not a.numel() or float((a - b).abs().max()) <= share * float(b.abs().max())
