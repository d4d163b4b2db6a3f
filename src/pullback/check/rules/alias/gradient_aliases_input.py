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
from functools import partial

import torch
from torch import Tensor

from pullback.check.facts import At, Gradient, Input, Output
from pullback.check.repro.calls import MEMORY, begun
from pullback.check.repro.scene import Scene, text_of
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
            yield Skip.refused(RULE, "backward fails", failure.raised)
            return
        real = {name: g for name, g in grads.items() if g is not None}
        kept: list[tuple[Input | Output, Tensor]] = [
            (Input(name), arg)
            for name, arg in zip(subject.names, run.passed, strict=False)
            if isinstance(arg, Tensor)
        ]
        kept += [(Output(i), output) for i, output in enumerate(run.outputs)]
        for name, gradient in real.items():
            for holder, other in kept:
                if name not in told and share_memory(gradient, other):
                    told.add(name)
                    yield _finding(subject, name, holder)


def _finding(subject: Subject, name: str, holder: Input | Output) -> Finding:
    return subject.finding(
        RULE,
        example=subject.base,
        at=At(Gradient(name)),
        expected="memory of its own",
        got=f"the memory of {holder}",
        detail=holder,
        fix="return a new tensor, by `.clone()` if need be",
    )


def _apart(scene: Scene, *, of_ones: bool = False) -> str:
    """The gradient and what it shares memory with, perhaps for cotangents of ones."""
    which = scene.names[scene.position]
    if which not in scene.leaves:
        return ""
    holder = scene.code_of(scene.about.detail)
    return text_of(
        begun(scene),
        [f"g = {scene.each('torch.ones_like(g)', 'g')}"] if of_ones else [],
        f"got = {scene.pull()}[{scene.leaves.index(which)}]",
        f'assert got.{MEMORY} != {holder}.{MEMORY}, "the gradient has its memory"',
    )


REPROS = (_apart, partial(_apart, of_ones=True))
