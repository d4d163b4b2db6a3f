"""A whole number, such as an index, must not come out as if it had a gradient.

What it checks
    Whether an output that requires grad holds whole numbers that forward made without any path for
    a gradient: run as plain PyTorch it would not require grad, and no input moves it.

Why it matters
    What is computed from an index is then trained on nothing, and no error says so; of a Function
    without a backward (Pointcept#343, mmdetection3d#377) the whole training step fails.

Fails
    values, index = x.min(-1); return values, index.to(x.dtype)

Passes
    ctx.mark_non_differentiable(index)     # or leave it an integer

Cannot see
    Outputs whose gradient is zero although PyTorch gives them one, such as `x.round()`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.example import tensors_in
from pullback.check.others import other_values
from pullback.check.run import cotangents_of
from pullback.check.subject import Finding, ForwardRefusedError, Rule, Severity, Skip, Subject

RULE = Rule(
    code="K805",
    name="unmarked-output",
    group="contract",
    severity=Severity.FRAGILE,
    profile="quick",
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per output of whole numbers that requires grad."""
    if not subject.target.is_function or subject.target.intent.has_surrogate:
        return
    called = subject.run()
    suspects = [i for i in called.live if _is_whole(called.outputs[i])]
    if len(called.live) < 2 or not suspects:
        return
    plain = _plain_outputs(subject)
    if len(plain) != len(called.outputs) or not any(o.requires_grad for o in plain):
        return
    for i in suspects:
        if plain[i].requires_grad or not _stays_whole(subject, i) or _moves(subject, i):
            continue
        yield subject.finding(
            RULE,
            example=subject.base,
            at=f"output {i}",
            expected="not to require grad: forward has no path for a gradient to it",
            got="whole numbers that require grad",
            fix=f"call ctx.mark_non_differentiable on output {i}, or return it as integers",
        )


def _is_whole(output: Tensor) -> bool:
    value = output.detach()
    if value.is_complex() or value.numel() == 0:
        return False
    return bool(torch.isfinite(value).all()) and bool((value == value.round()).all())


def _stays_whole(subject: Subject, position: int) -> bool:
    """Whether it holds whole numbers for other inputs too."""
    for shift in (1, 2):
        try:
            output = subject.run(other_values(subject.base, shift)).outputs[position]
        except ForwardRefusedError:
            continue
        if not _is_whole(output):
            return False
    return True


def _plain_outputs(subject: Subject) -> list[Tensor]:
    """The outputs of forward run as plain PyTorch; none where that cannot be."""
    args = subject.base.fresh()
    try:
        with torch.enable_grad():
            return tensors_in(subject.reference.program(*(_cloned(arg) for arg in args)))
    except Exception:
        return []


def _cloned(arg: object) -> object:
    return arg.clone() if isinstance(arg, Tensor) else arg


def _moves(subject: Subject, position: int) -> bool:
    """Whether the output has a derivative that is not zero along some input, or a doubtful one."""
    called = subject.run()
    every = cotangents_of(called.outputs, 0)
    cotangents = [c if i == position else None for i, c in enumerate(every)]
    for i in subject.base.needs:
        along = torch.ones(called.args[i].shape, dtype=torch.float64)
        slope = subject.reference.slope(subject.base, cotangents, {i: along}, 1e-6)
        if not slope.is_known or abs(slope.value) > 4 * slope.error + 1e-6:
            return True
    return False
