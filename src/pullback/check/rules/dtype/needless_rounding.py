"""Gradients must not be rounded to a coarser dtype than their own.

What it checks
    Whether every entry of a gradient could be written in a coarser dtype (float32 for float64,
    float16 and bfloat16 for float32, bfloat16 for float16), though neither forward's outputs nor
    PyTorch's own gradient could.

Why it matters
    A `.float()` on the way costs float64 users half of their digits; float16 gradients that pass
    through bfloat16 lose three bits of eleven in silence (Liger#1253).

Fails
    return (grad.float() * y.float()).to(grad.dtype)

Passes
    return grad * y

Cannot see
    A part of the computation that is coarse, with a fine step after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.explaining import Cause
from pullback.check.facts import At, Gradient
from pullback.check.inputs.dtypes import coarser_of, dtype_of, in_dtype
from pullback.check.repro.gradients import by_float64
from pullback.check.repro.scene import Scene, text_of
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
    each,
    worst_of,
)
from pullback.check.trials import is_new
from pullback.judge.example import Example, name_of
from pullback.judge.run import Run, copies_of

RULE = Rule(code="D503", name="needless-rounding", group="dtype", profile="quick")

DTYPES = (torch.float64, torch.float32, torch.float16)
FEW = 5  # entries by which chance is ruled out


@dataclass(frozen=True, slots=True)
class Coarse:
    """The dtype in which every entry could be written, by its name."""

    dtype: str


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is coarser than its dtype."""
    for dtype in each(DTYPES, subject):
        example = in_dtype(subject.small, dtype)
        if example is not None and dtype_of(example) == dtype:
            yield from _coarse(subject, example)


def _coarse(subject: Subject, example: Example) -> Iterator[Finding]:
    try:
        run = subject.run(example)
        cotangents = _full(run)
        grads = run.pull(copies_of(cotangents))
    except (ForwardRefusedError, BackwardFailedError):
        return
    positions = {name: i for i, name in enumerate(run.names) if name in grads}
    suspects = {n: g for n, g in grads.items() if g is not None and _told(g)}
    if not suspects:
        return
    eager = subject.reference.gradients(example, cotangents, tuple(positions.values())) or {}
    for name, got in suspects.items():
        truth = eager.get(positions[name])
        if truth is None or truth.shape != got.shape or subject.target.intent.is_surrogate(name):
            continue
        dtype = _told(got)
        if dtype in (_told(truth), *(_told(run.outputs[i]) for i in run.live)):
            continue
        if any(_is_written(t, dtype) for t in (truth, *(run.outputs[i] for i in run.live))):
            continue
        if is_new(subject, RULE, name):
            index, have, want = worst_of(got, truth)
            yield subject.finding(
                RULE,
                example=example,
                at=At(Gradient(name), index),
                expected=want.then(f", with the digits of {name_of(got.dtype)}"),
                got=have.then(f", and every entry could be written in {dtype}"),
                detail=Coarse(dtype),
                fix=f"compute in {name_of(got.dtype)} or finer, and round once at the end",
            )


def _told(tensor: Tensor) -> str:
    """The coarsest dtype in which every entry could be written; empty if it is the tensor's own."""
    values = tensor.detach()
    values = values[torch.isfinite(values) & (values != 0)]
    if values.unique().numel() < FEW:
        return ""
    return ([name for name, _ in coarser_of(values)] or [""])[-1]


def _is_written(tensor: Tensor, name: str) -> bool:
    """Whether every entry could be written in the dtype of that name."""
    values = tensor.detach()
    return name in [told for told, _ in coarser_of(values[torch.isfinite(values)])]


def _full(run: Run) -> list[Tensor | None]:
    """Cotangents with all digits of their dtype."""
    found: list[Tensor | None] = []
    for number_, output in enumerate(run.outputs):
        generator = torch.Generator().manual_seed(31 + number_)
        values = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        found.append(values.to(output.dtype) if output.requires_grad else None)
    return found


def _rounded(scene: Scene) -> str:
    """The gradient has more digits than a narrower dtype could hold."""
    if not scene.name:
        return ""
    coarse = "float32" if scene.about.detail.dtype == "float32" else "bfloat16"
    which = scene.leaves.index(scene.names[scene.position])
    return text_of(
        scene.settings(),
        scene.weights(),
        scene.done(),
        f"got = {scene.pull()}[{which}]",
        f"assert not torch.equal(got.to(torch.{coarse}).to(got.dtype), got), "
        f'f"every entry fits {coarse}: {{got=}}"',
    )


REPROS = (_rounded, by_float64)

EXPLAINS = (Cause(frozenset({"hessian-asymmetry"}), "the digits are lost there", rank=220),)
