"""Gradients must be right in every dtype that forward accepts.

What it checks
    The gradients in float32 against forward's own; in float16 and bfloat16 against the function's
    own gradient in float64 at the very same values, with room for the rounding that is usual there.

Why it matters
    Kernels have a branch per dtype, and authors check in float64 because `gradcheck` asks for it.
    The branch that trains is another one.

Fails
    if grad.dtype == torch.bfloat16: return grad * w, grad * w

Passes
    return grad * w, grad * x

Cannot see
    Errors in half precision below about one part in six of the largest entry (bfloat16), or one in
    forty (float16).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pullback.check.findings.explaining import Cause
from pullback.check.findings.facts import At, Gradient, Number
from pullback.check.inputs.dtypes import LOW, dtype_of, in_dtype
from pullback.check.repro.gradients import by_float64, of_number
from pullback.check.subject.conditions import RUNS, needs
from pullback.check.subject.precision import precisions
from pullback.check.subject.subject import (
    BackwardFailedError,
    CallError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
    each,
)
from pullback.check.subject.trials import is_new
from pullback.judge.example import Example, dtype_name
from pullback.judge.run import Raised

RULE = Rule("D501", "wrong-dtype-branch", "dtype", profile="quick")

FIX = "let every dtype take the same path, or refuse the dtype in forward"

# In units of the dtype's rounding error; sound functions of several steps stay below 8.
ROUNDINGS = 20
TIMES_USUAL = 8

ABSENT = "not implemented for '"  # PyTorch has no kernel of an operator for that dtype, and says so


@needs(RULE, RUNS)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong in a dtype."""
    yield from _single(subject)
    for dtype in each(LOW, subject):
        yield from _half(subject, dtype)


def _single(subject: Subject) -> Iterator[Finding]:
    example = subject.small.to(torch.float32)
    if dtype_of(subject.small) not in (torch.float64, torch.complex128):
        return
    try:
        subject.pull(subject.small)
    except CallError:
        return
    try:
        mismatches = subject.judge(example)
    except ForwardRefusedError:
        return
    except BackwardFailedError as failure:
        yield from _raised(subject, torch.float32, failure.raised)
        return
    for mismatch in mismatches:
        if is_new(subject, RULE, mismatch.name):
            yield subject.mismatched(RULE, mismatch, example, fix=FIX)


def _half(subject: Subject, dtype: torch.dtype) -> Iterator[Finding]:
    example = in_dtype(subject.small, dtype)
    if example is None:
        return
    refusal = _refusal(subject, example)
    if refusal:
        yield from _raised(subject, dtype, refusal)
        return
    eps = torch.finfo(dtype).eps
    for found in precisions(subject, example):
        if found.error <= ROUNDINGS * eps + TIMES_USUAL * found.usual:
            continue
        if is_new(subject, RULE, found.name):
            yield subject.finding(
                RULE,
                example=example,
                at=At(Gradient(found.name), found.index),
                expected=Number(found.expected, ", as in float64"),
                got=Number(found.got, f", in {dtype_name(dtype)}"),
                fix=FIX,
            )


def _refusal(subject: Subject, example: Example) -> Raised | None:
    """What backward raises in a dtype that forward takes, and PyTorch's own gradient too."""
    try:
        run = subject.run(example)
    except ForwardRefusedError:
        return None
    if not run.live:
        return None
    cotangents = subject.cotangents(run)
    try:
        run.pull(cotangents)
    except BackwardFailedError as failure:
        if ABSENT in str(failure.error):
            return None
        usual = subject.reference.gradients(example, cotangents, tuple(sorted(example.needs)))
        return None if usual is None else failure.raised
    return None


def _raised(subject: Subject, dtype: torch.dtype, raised: Raised) -> Iterator[Finding]:
    if is_new(subject, RULE, "raised"):
        yield subject.finding(
            RULE,
            example=subject.small.to(dtype),
            at=f"backward, in {dtype_name(dtype)}",
            expected=f"gradients, as in {dtype_name(dtype_of(subject.small) or torch.float64)}",
            got=raised,
            fix=FIX,
            severity=Severity.FRAGILE,
        )


REPROS = (by_float64, of_number)

EXPLAINS = (
    Cause(
        frozenset({"mixed-cotangent", "far-from-zero", "lost-digits", "autocast-differs"}),
        "they compare numbers of that dtype",
        rank=200,
    ),
)
