"""An output that no input moves, such as an index or a count, must not seem to have a gradient.

What it checks
    Whether an output beside others requires grad though forward made it without any path for a
    gradient: run as plain PyTorch it would not require grad, and small steps of the inputs leave it
    as it is, at the example and at other values.

Why it matters
    What is computed from an index is then trained on nothing, and no error says so; of a Function
    without a backward (Pointcept#343, mmdetection3d#377) the whole training step fails.

Fails
    return x.relu(), (x > 0).float().mean(-1)

Passes
    ctx.mark_non_differentiable(share)     # or return integers

Cannot see
    Outputs whose gradient is zero although PyTorch gives them one, such as `x.round()`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Output
from pullback.check.inputs.others import other_values
from pullback.check.repro.calls import requires_no_grad
from pullback.check.subject.subject import (
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.judge.example import Example, tensors_in

RULE = Rule("K805", "unmarked-output", "contract", Severity.FRAGILE, "quick")

STEPS = (1e-6, -1e-6)  # shares of each entry


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per output that stays as it is and requires grad."""
    if not subject.target.is_function or subject.target.intent.has_surrogate:
        return
    called = subject.run()
    suspects = [i for i in called.live if called.outputs[i].numel()]
    if len(called.live) < 2 or not subject.is_steady:
        return
    plain = _plain_outputs(subject)
    if len(plain) != len(called.outputs) or not any(o.requires_grad for o in plain):
        return
    for i in suspects:
        if plain[i].requires_grad or _moves(subject, i):
            continue
        yield subject.finding(
            RULE,
            example=subject.base,
            at=At(Output(i)),
            expected="not to require grad: forward has no path for a gradient to it",
            got="it requires grad, though no small step of an input changes it",
            remedy=str(i),
            fix=f"call ctx.mark_non_differentiable on output {i}, or return it as integers",
        )


def _plain_outputs(subject: Subject) -> list[Tensor]:
    """The outputs of forward run as plain PyTorch; none where that cannot be."""
    args = (arg.clone() if isinstance(arg, Tensor) else arg for arg in subject.base.fresh())
    try:
        with torch.enable_grad():
            return tensors_in(subject.reference.program(*args))
    except Exception:  # a forward that needs a context's own methods, say
        return []


def _moves(subject: Subject, position: int) -> bool:
    """Whether a small step of the inputs changes the output, at the example or at other values."""
    tried = 0
    for shift in range(3):
        example = other_values(subject.base, shift) if shift else subject.base
        try:
            here = subject.run(example).outputs[position].detach()
            for step in STEPS:
                there = subject.run(_stepped(example, step)).outputs[position].detach()
                if not torch.equal(here, there):
                    return True
                tried += 1
        except (ForwardRefusedError, IndexError):
            continue
    return tried == 0


def _stepped(example: Example, step: float) -> Example:
    """Every input moved by a part of itself, each entry by another one."""
    for i in sorted(example.needs):
        generator = torch.Generator().manual_seed(i)
        value = example.args[i]
        along = torch.rand(value.shape, generator=generator, dtype=torch.float64) + 0.5
        moved = value + (step * along.to(value.device) * (value.abs() + 1e-3)).to(value.dtype)
        example = example.put(i, moved, example.label)
    return example


REPROS = (requires_no_grad,)
