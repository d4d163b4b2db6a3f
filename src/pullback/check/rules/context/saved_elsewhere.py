"""Saved tensors that come back from other memory than they were saved from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import Input
from pullback.check.findings.registered import Registered
from pullback.check.repro.context import ReproContext, compared, text_of
from pullback.check.subject.conditions import KEEPS_INPUTS, REPEATABLE, RUNS, needs
from pullback.check.subject.gap import gaps
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
    each,
)

FREED_STORAGE = Rule("Q004", "freed-storage", "context", Severity.FRAGILE, "quick")
HOOKS_BYPASSED = Rule("Q005", "hooks-bypassed", "context", Severity.FRAGILE, "quick")


@needs(FREED_STORAGE, RUNS, REPEATABLE, KEEPS_INPUTS)
def freed_storage(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input that is not followed."""
    usual = subject.pull()
    for position in each(subject.base.differentiable, subject):
        mover = Mover()
        with torch.autograd.graph.saved_tensors_hooks(mover.pack, mover.unpack):
            run = subject.run()
        cotangents = subject.cotangents(run)
        if not run.live or not mover.move(run.args[position], run.outputs):
            continue
        try:
            grads = run.pull(cotangents)
        except BackwardFailedError:
            continue
        moved = Input(subject.names[position])
        for gap in islice(gaps(grads, usual), 1):
            yield subject.finding(
                FREED_STORAGE,
                example=subject.base,
                **gap.facts(f", after `{moved.name}` got other memory"),
                detail=moved,
                why="an alias of the input was kept past `save_for_backward`",
                fix="save the input itself with ctx.save_for_backward",
            )


class Mover:
    """Moves the memory of one input; what was saved of it is found again in the new memory."""

    def __init__(self) -> None:
        self.old = 0
        self.new: Tensor | None = None

    def move(self, tensor: Tensor, outputs: tuple[Tensor, ...]) -> bool:
        """Give a tensor other memory and spoil the old one; False where that cannot be done."""
        storage = tensor.untyped_storage()
        if any(o.untyped_storage().data_ptr() == storage.data_ptr() for o in outputs):
            return False
        old = tensor.data
        whole = torch.empty(0, dtype=old.dtype, device=old.device).set_(storage)
        self.old = storage.data_ptr()
        self.new = whole.clone()
        tensor.data = self.new.as_strided(old.size(), old.stride(), old.storage_offset())
        whole.fill_(torch.nan)
        return True

    def pack(self, tensor: Tensor) -> Any:
        """Keep what is saved as it is."""
        return tensor

    def unpack(self, kept: Any) -> Any:
        """What was saved, in the new memory where it lay in the old one."""
        if self.new is None or kept.untyped_storage().data_ptr() != self.old:
            return kept
        if kept.dtype != self.new.dtype:
            return kept
        place = (kept.size(), kept.stride(), kept.storage_offset())
        found = self.new.as_strided(*place)
        return found.conj() if kept.is_conj() else found


def _moved(context: ReproContext) -> str:
    """An input that gets other memory between forward and backward, as offloading does."""
    name = context.code_of(context.about.detail)
    return text_of(
        context.settings(),
        context.weights(),
        context.done(),
        f"wanted = {context.pull()}",
        context.done(),
        f"old = {name}.data",
        f"{name}.data = old.clone()",
        'old.fill_(float("nan"))  # freed, and used for something else',
        compared(context.pull(), "wanted"),
    )


@needs(HOOKS_BYPASSED, RUNS, REPEATABLE)
def hooks_bypassed(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield a finding when hooks change the gradients, or make backward fail."""
    usual = subject.pull()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), Tensor.clone):
        run = subject.run()
    try:
        grads = run.pull(subject.cotangents(run)) if run.live else {}
    except BackwardFailedError as failure:
        yield subject.finding(
            HOOKS_BYPASSED,
            example=subject.base,
            at="backward, with saved tensors that come back from other memory",
            expected="the gradients of an ordinary call",
            got=failure.raised,
            fix="read nothing from a saved tensor but its values",
        )
        return
    for gap in islice(gaps(grads, usual), 1):
        yield subject.finding(
            HOOKS_BYPASSED,
            example=subject.base,
            severity=Severity.WRONG,
            **gap.facts(", with saved tensors from other memory"),
            fix="read nothing from a saved tensor but its values",
        )


RULES = (
    Registered(
        FREED_STORAGE,
        freed_storage,
        repros=(_moved,),
        page="""
An input whose memory moves between forward and backward must be followed.

What it checks
    After forward, each input gets other memory with the same values, its old memory is filled with
    NaN, and what went through `save_for_backward` follows, as under ZeRO and FSDP. Gradients stay
    the same, or backward raises.

Why it matters
    Sharded training frees a parameter after forward and gathers it again before backward,
    elsewhere. An alias that was kept past `save_for_backward` reads freed memory then (VeOmni#804).

Fails
    ctx.weight = weight.detach()

Passes
    ctx.save_for_backward(weight)

Cannot see
    Memory that another device or process moves.
""",
    ),
    Registered(
        HOOKS_BYPASSED,
        hooks_bypassed,
        page="""
Saved tensors may come back from other memory than they were saved from.

What it checks
    Under saved-tensor hooks that copy each tensor elsewhere, as offloading does, backward gives the
    same gradients, and does not raise.

Why it matters
    Offloading, activation checkpointing and compression work by these hooks. A backward that knows
    a saved tensor by its address, its identity or its strides gives wrong numbers under them.

Fails
    slope = MyFunction.cache[x.data_ptr()]

Passes
    x, slope = ctx.saved_tensors

Cannot see
    Tensors that are kept past `save_for_backward`: no hook sees those (see `tensor-on-ctx`).
""",
    ),
)
