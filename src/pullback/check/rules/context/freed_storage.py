"""An input whose memory moves between forward and backward must be followed.

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
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.check.elsewhere import is_repeatable
from pullback.check.facts import At, Gradient, Input
from pullback.check.repro.scene import Scene, compared, text_of
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
    each,
    worst_of,
)
from pullback.judge.tolerances import is_close

RULE = Rule(
    code="Q004", name="freed-storage", group="context", severity=Severity.FRAGILE, profile="quick"
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input that is not followed."""
    if subject.fails_at_base:
        yield Skip.refused(RULE, "backward fails at the example", subject.fails_at_base)
        return
    if not is_repeatable(subject):
        yield Skip.refused(RULE, "the same call does not give the same twice")
        return
    if subject.writes_inputs:
        yield Skip(RULE, "forward itself changes its inputs")
        return
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
        for name, got in grads.items():
            expected = usual[name]
            if got is None or expected is None or got.shape != expected.shape:
                continue
            if is_close(got, expected, 100):
                continue
            index, have, want = worst_of(got, expected)
            moved = Input(subject.names[position])
            yield subject.finding(
                RULE,
                example=subject.base,
                at=At(Gradient(name), index, rest=f", after `{moved.name}` got other memory"),
                detail=moved,
                expected=want,
                got=have,
                why="an alias of the input was kept past `save_for_backward`",
                fix="save the input itself with ctx.save_for_backward",
            )
            break


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


def _moved(scene: Scene) -> str:
    """An input that gets other memory between forward and backward, as offloading does."""
    name = scene.code_of(scene.about.detail)
    return text_of(
        scene.settings(),
        scene.weights(),
        scene.done(),
        f"wanted = {scene.pull()}",
        scene.done(),
        f"old = {name}.data",
        f"{name}.data = old.clone()",
        'old.fill_(float("nan"))  # freed, and used for something else',
        compared(scene.pull(), "wanted"),
    )


REPROS = (_moved,)
