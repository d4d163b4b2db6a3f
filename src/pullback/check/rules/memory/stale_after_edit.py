"""A change of an input or output between forward and backward must be noticed.

What it checks
    Each input and each output is changed in place after forward. Backward must then raise, as it
    does for what was saved with `save_for_backward`, or give the gradients it would have given.

Why it matters
    A tensor kept on a ctx attribute, or saved through `.data` or `.detach()`, has no version that
    is looked at: after `x.mul_(10)` the gradient is ten times wrong, with no error.

Fails
    ctx.x = x

Passes
    ctx.save_for_backward(x)

Cannot see
    Changes made through `.data` or by a kernel, which PyTorch does not see either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.findings.facts import Input, Output
from pullback.check.repro.calls import begun
from pullback.check.repro.context import ReproContext, compared, text_of
from pullback.check.subject.conditions import KEEPS_INPUTS, RUNS, STEADY, needs
from pullback.check.subject.gap import gaps
from pullback.check.subject.subject import BackwardFailedError, Finding, Rule, Skip, Subject
from pullback.judge.run import Run

RULE = Rule("B851", "stale-after-edit", "memory", profile="quick")


@dataclass(frozen=True, slots=True)
class Edited:
    """What was changed between forward and backward."""

    thing: Input | Output


@needs(RULE, RUNS, KEEPS_INPUTS, STEADY)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per tensor whose change goes unnoticed."""
    usual = subject.pull()
    tied = {Input(subject.names[tie.position]) for tie in subject.base.ties}
    for what in _editable(subject.run()):
        if what in tied:
            continue  # a parameter of a module that backward runs again, as a checkpoint does
        run = subject.run()
        cotangents = subject.cotangents(run)
        if not _edit(_editable(run)[what]):
            continue
        try:
            grads = run.pull(cotangents)
        except BackwardFailedError:
            continue
        for gap in gaps(grads, usual):
            yield subject.finding(
                RULE,
                example=subject.base,
                **gap.facts(f", after {what} was changed in place", expected=", or an error"),
                detail=Edited(what),
                why="what backward reads is not watched for changes",
                fix="keep it with ctx.save_for_backward, not on a ctx attribute or through .data",
            )
            break


def _editable(run: Run) -> dict[Input | Output, Tensor]:
    """The inputs and outputs that a caller may change."""
    found: dict[Input | Output, Tensor] = {
        Input(name): arg
        for name, arg in zip(run.names, run.args, strict=False)
        if isinstance(arg, Tensor) and arg.is_floating_point()
    }
    return found | {
        Output(i): output for i, output in enumerate(run.outputs) if output.is_floating_point()
    }


def _edit(tensor: Tensor) -> bool:
    try:
        with torch.no_grad():
            tensor.mul_(0.5).add_(0.25)
    except RuntimeError:
        return False
    return True


def _edited(context: ReproContext) -> str:
    """A change between forward and backward must be noticed, or make no difference."""
    return text_of(
        begun(context),
        f"wanted = [grad.clone() for grad in {context.pull()}]",
        context.done(),
        "with torch.no_grad():",
        f"    {context.code_of(context.about.detail.thing)}.mul_(0.5).add_(0.25)"
        "  # not to be read any more",
        "try:",
        f"    found = {context.pull()}",
        "except RuntimeError:",
        "    found = wanted  # the change was noticed",
        compared("found", "wanted"),
    )


REPROS = (_edited,)
