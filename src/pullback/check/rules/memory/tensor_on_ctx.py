"""Tensors must be kept with `save_for_backward`, not on an attribute of ctx.

What it checks
    Whether an attribute of ctx holds an input or an output (or its memory), or more than a few
    numbers that are still there after backward has freed the graph, while the output lives. A mask
    or an index that forward made (`ctx.mask = x > 0`) is left alone.

Why it matters
    What lies on ctx is not freed by backward, is not seen when it is changed in place, does not go
    through saved-tensor hooks (offloading, checkpointing), is a constant to double backward, and an
    output there makes a cycle that only the garbage collector ends (pytorch#25340).

Fails
    ctx.x = x

Passes
    ctx.save_for_backward(x)

Cannot see
    Tensors inside objects on ctx other than lists, tuples and dicts. A `pullback.Function` saves
    such attributes by itself, so nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.explaining import UNWATCHED, Cause
from pullback.check.findings.facts import Input, Output
from pullback.check.repro.calls import begun
from pullback.check.repro.context import ReproContext, text_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.check.watching.snapshot import share_memory
from pullback.judge.example import can_differ, tensors_in
from pullback.judge.run import Run

RULE = Rule("B855", "tensor-on-ctx", "memory", Severity.FRAGILE, "quick")

FEW = 1  # so many numbers on ctx are a flag or a seed, no matter where they are kept


@dataclass(frozen=True, slots=True)
class OnCtx:
    """An attribute of ctx, and the input or output that it holds."""

    attribute: str
    held: Input | Output | None
    has_slope: bool  # whether what is on ctx has floating numbers


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding, about the first attribute that holds a tensor of weight."""
    if not subject.target.is_function or subject.target.is_ours:
        return
    run = subject.run()
    node = next((run.outputs[i].grad_fn for i in run.live), None)
    if node is None:
        yield Skip(RULE, "no output can have a gradient")
        return
    before = _attributes(node)
    held = {attribute: _held(run, tensors) for attribute, tensors in before.items()}
    with suppress(BackwardFailedError):  # what is kept is kept all the same
        run.pull(subject.cotangents(run))
    after = _attributes(node)
    found = [name for name in before if held[name] or any(map(can_differ, after.get(name, ())))]
    for name in before:
        subject.reported.add((RULE.group, f"ctx.{name}"))
    for name in found[:1]:
        size = sum(t.numel() * t.element_size() for t in before[name])
        got = f"{size} bytes that stay after backward, while the output lives"
        if held[name] is not None:
            got = f"{held[name]}, which no version check and no hook sees there"
        yield subject.finding(
            RULE,
            example=subject.base,
            at=" and ".join(f"`ctx.{attribute}`" for attribute in found),
            expected="tensors kept with ctx.save_for_backward, and freed by backward",
            got=got,
            detail=OnCtx(name, held[name], any(map(can_differ, chain(*before.values())))),
            remedy=name,
            fix=f"ctx.save_for_backward instead of ctx.{name}",
        )


def _attributes(node: object) -> dict[str, list[Tensor]]:
    """The tensors of some size on the attributes that the user has set; states are bytes."""
    found = {
        name: [t for t in tensors_in(value) if t.numel() > FEW and t.dtype != torch.uint8]
        for name, value in getattr(node, "__dict__", {}).items()
        if not name.startswith("_")
    }
    return {name: tensors for name, tensors in found.items() if tensors}


def _held(run: Run, tensors: list[Tensor]) -> Input | Output | None:
    """Which input or output is among them."""
    named: list[tuple[Input | Output, Any]] = [
        (Input(name), arg) for name, arg in zip(run.names, run.passed, strict=False)
    ]
    named += [(Output(i), output) for i, output in enumerate(run.outputs)]
    for thing, value in named:
        for other in tensors_in(value):
            if any(t is other or share_memory(t, other) for t in tensors):
                return thing
    return None


def _kept(context: ReproContext) -> str:
    """No attribute of ctx holds a tensor after backward."""
    if not context.used:
        return ""
    return text_of(
        begun(context),
        f"node = {context.output(context.used[0])}.grad_fn",
        context.pull(),
        f'kept = getattr(node, "{context.about.detail.attribute}", None)'
        "  # an attribute of ctx, after backward",
        "kept = kept if isinstance(kept, (list, tuple)) else [kept]",
        'assert not any(isinstance(t, torch.Tensor) for t in kept), f"{kept=}"',
    )


REPROS = (_kept,)

EXPLAINS = (
    Cause(
        UNWATCHED,
        "autograd does not watch what is on ctx and not saved",
        rank=160,
        holds=lambda finding: finding.about.detail.held is not None,
        weighs=True,
    ),
    Cause(
        frozenset({"detached-double-backward"}),
        "autograd does not follow what is on ctx and not saved",
        rank=161,
        holds=lambda finding: (
            finding.about.detail.held is not None and finding.about.detail.has_slope
        ),
        weighs=True,
    ),
    Cause(
        UNWATCHED,
        "autograd does not watch what is on ctx and not saved",
        rank=170,
        weighs=True,
    ),
)
