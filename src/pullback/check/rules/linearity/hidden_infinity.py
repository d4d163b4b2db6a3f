"""A cotangent that is not finite must reach a gradient, and must not be refused.

What it checks
    A cotangent of infinities and one of NaN: backward raises nothing, and at least one entry of one
    gradient is not finite, where autograd over forward gives such entries.

Why it matters
    A grad scaler sends an overflow on purpose: it skips the step where a gradient is not finite. A
    backward that raises there ends the training; one that turns NaN into zero hides the overflow,
    and the step is taken with half of its gradients missing.

Fails
    return torch.nan_to_num(grad) * y

Passes
    return grad * y

Cannot see
    Single entries that are lost: a mask may rightly drop them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from pullback.check.subject.conditions import RUNS, needs
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.judge.run import Raised, Run, copies_of

RULE = Rule("L205", "hidden-infinity", "linearity", Severity.FRAGILE, "quick")

VALUES = {"infinite": math.inf, "NaN": math.nan}


@needs(RULE, RUNS)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    if subject.target.intent.has_surrogate:
        yield Skip(RULE, "the gradients are declared to be others than forward's")
        return
    if any(group == RULE.group for group, _ in subject.reported):
        return  # not linear at ordinary cotangents: said before
    for label, value in VALUES.items():
        run = subject.run()
        given = _filled(run, value)
        wanted = tuple(i for i, name in enumerate(run.names) if name in run.leaves)
        usual = subject.reference.gradients(subject.base, given, wanted)
        if usual is None or not _is_spoiled(usual.values()):
            continue
        try:
            grads = run.pull(copies_of(given))
        except BackwardFailedError as failure:
            got: Raised | str = failure.raised
        else:
            if _is_spoiled(grads.values()):
                continue
            got = "finite gradients only"
        yield subject.finding(
            RULE,
            example=subject.base,
            at=f"backward, with cotangents that are {label}",
            expected="gradients that are not finite, by which a grad scaler skips the step",
            got=got,
            fix="let what is not finite through; where a bound is meant, declare a surrogate",
        )
        return


def _filled(run: Run, value: float) -> list[Tensor | None]:
    """The same number as every entry of every cotangent."""
    return [
        torch.full(t.shape, value, dtype=t.dtype, device=t.device) if t.requires_grad else None
        for t in run.outputs
    ]


def _is_spoiled(grads: Iterable[Tensor | None]) -> bool:
    """Whether any entry of any gradient is not finite."""
    found = [g for g in grads if g is not None]
    return any(not bool(torch.isfinite(g.detach()).all()) for g in found)
