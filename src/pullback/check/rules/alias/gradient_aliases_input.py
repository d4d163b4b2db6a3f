"""A gradient must not be the memory of an input or an output.

What it checks
    Whether a returned gradient shares memory with an input or an output, for random cotangents and
    for ones.

Why it matters
    Gradients are clipped and scaled in place: then the input itself changes.

Fails
    return saved_b if g == 1 else g * saved_b

Passes
    return g * saved_b

Cannot see
    Memory that is shared only for inputs that were not tried. One tensor returned for two inputs is
    fine: PyTorch's own addition does so.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.facts import At, Gradient
from pullback.check.snapshot import share_memory
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)

RULE = Rule(
    code="A751",
    name="gradient-aliases-input",
    group="alias",
    severity=Severity.FRAGILE,
    profile="quick",
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per gradient that shares memory."""
    told: set[str] = set()
    for kind in ("random", "ones"):
        run = subject.run()
        cotangents = subject.cotangents(run, 5)
        if kind == "ones":
            cotangents = tuple(None if c is None else torch.ones_like(c) for c in cotangents)
        try:
            grads = run.pull(cotangents, retain_graph=True)
        except BackwardFailedError as failure:
            yield Skip.refused(RULE, f"backward fails: {failure}")
            return
        real = {name: g for name, g in grads.items() if g is not None}
        kept: list[tuple[str, Tensor]] = [
            (f"input `{name}`", arg)
            for name, arg in zip(subject.names, run.passed, strict=False)
            if isinstance(arg, Tensor)
        ]
        kept += [(f"output {i}", output) for i, output in enumerate(run.outputs)]
        for name, gradient in real.items():
            for where, other in kept:
                if name not in told and share_memory(gradient, other):
                    told.add(name)
                    yield _finding(subject, name, where)


def _finding(subject: Subject, name: str, where: str) -> Finding:
    return subject.finding(
        RULE,
        example=subject.base,
        at=At(Gradient(name)),
        expected="memory of its own",
        got=f"the memory of {where}",
        fix="return a new tensor, by `.clone()` if need be",
    )
