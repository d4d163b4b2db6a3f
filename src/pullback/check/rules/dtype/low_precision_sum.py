"""Sums in backward must not be accumulated in low precision.

What it checks
    Each size of the example in turn as 2048, in bfloat16, with values and cotangents of one sign:
    the gradients against those in float64, and next to PyTorch's own in bfloat16.

Why it matters
    A running sum in bfloat16 stops growing at 256 times its addends: over 4096 rows the gradient of
    a weight is 59 % too small. On small or signed data nothing shows (Liger#950, llm.c#476).

Fails
    for row in grad * x: dw += row

Passes
    dw = (grad.float() * x.float()).sum(0).to(w.dtype)

Cannot see
    Sums over fewer rows than it takes to lose an eighth of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from pullback.check.findings.facts import At, Gradient, Number
from pullback.check.inputs.dtypes import in_dtype
from pullback.check.inputs.shapes import fits, resized, symbols_of
from pullback.check.repro.context import ReproContext
from pullback.check.repro.gradients import by_float64
from pullback.check.subject.precision import precisions
from pullback.check.subject.subject import (
    CallError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
    each,
)
from pullback.check.subject.trials import is_new
from pullback.judge.example import Example
from pullback.judge.run import Run

RULE = Rule("D502", "low-precision-sum", "dtype", profile="quick")

LONG = 2048
# Shorter runs before it, and the seconds that each may take: what grows too fast is left alone.
LADDER = ((64, 0.008), (512, 0.06))
ELEMENTS = 80_000

LOST = 0.12  # the share of the gradient that must be missing
USUAL = 0.03  # where PyTorch's own gradient loses so much, nobody is to blame


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient loses much of a long sum."""
    if subject.fails_at_base or in_dtype(subject.small, torch.bfloat16) is None:
        return
    for symbol in each(symbols_of(subject.small)[:3], subject):
        if not fits(subject.small, {symbol: LONG}, ELEMENTS):
            continue
        if not all(_is_cheap(subject, _example(subject, symbol, n), t) for n, t in LADDER):
            continue
        example = _example(subject, symbol, LONG)
        try:
            cotangents = _even(subject.run(example))
        except ForwardRefusedError:
            continue
        for found in precisions(subject, example, cotangents):
            if found.error <= LOST or found.usual > USUAL:
                continue
            if is_new(subject, RULE, found.name):
                yield subject.finding(
                    RULE,
                    example=example,
                    at=At(Gradient(found.name), found.index),
                    expected=Number(found.expected, ", as in float64"),
                    got=Number(found.got, ", in bfloat16"),
                    why="a running sum in bfloat16 stops growing at 256 times its addends",
                    fix="accumulate in float32 and round once at the end",
                )


def _example(subject: Subject, symbol: int, size: int) -> Example:
    """The example with one long size, in bfloat16, and all values positive."""
    long = resized(subject.small, {symbol: size}, f"size {symbol} as {size}, values of one sign")
    for i in long.differentiable:
        long = long.put(i, long.args[i].abs() + 0.25, long.label)
    return long.to(torch.bfloat16, long.label)


def _is_cheap(subject: Subject, example: Example, seconds: float) -> bool:
    start = time.process_time()
    try:
        run = subject.run(example)
        run.pull(_even(run))
    except CallError:
        return False
    taken = time.process_time() - start
    return sum(output.numel() for output in run.outputs) <= ELEMENTS and taken < seconds


def _even(run: Run) -> list[torch.Tensor | None]:
    """Cotangents of one sign."""
    return [torch.full_like(t, 0.75) if t.requires_grad else None for t in run.outputs]


def _summed(context: ReproContext) -> str:
    """For cotangents of ones: in a long sum of one sign, what is small is lost."""
    outputs = [context.run.outputs[i] for i in context.used]
    ones = (f"torch.ones({tuple(out.shape)}, dtype={out.dtype})" for out in outputs)
    return by_float64(context, [f"g = {context.joined(ones)}"])


REPROS = (by_float64, _summed)
