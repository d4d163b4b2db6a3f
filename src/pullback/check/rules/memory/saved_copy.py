"""An input should be saved itself, not a copy of it.

What it checks
    Whether a saved tensor holds the numbers of an input, bit by bit and at several values, in
    memory of its own.

Why it matters
    The copy costs its memory from forward to backward, for every layer, and the time to make it. An
    input that is saved itself costs nothing, and PyTorch notices when it is written into.

Fails
    ctx.save_for_backward(x.clone())

Passes
    ctx.save_for_backward(x)

Cannot see
    Copies that are kept elsewhere than with `save_for_backward`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.others import other_values
from pullback.check.saving import saving
from pullback.check.snapshot import share_memory
from pullback.check.subject import Finding, ForwardRefusedError, Rule, Severity, Skip, Subject
from pullback.judge.example import Example, can_differ, tensors_in

RULE = Rule(
    code="B858", name="saved-copy", group="memory", severity=Severity.WASTEFUL, profile="quick"
)

LEAST = 8  # entries by which chance is ruled out


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input of which a copy is saved."""
    if not subject.target.is_function or subject.fails_at_base or subject.writes_inputs:
        return
    start = subject.small
    found = _copied(subject, start)
    for example in (other_values(start), start.map(_negated, "negated"), start.map(_mixed, "")):
        if not found:
            return
        try:
            found &= _copied(subject, example)
        except ForwardRefusedError:
            continue
    for name in sorted(found):
        yield subject.finding(
            RULE,
            example=start,
            at=f"a saved copy of `{name}`",
            expected=f"`{name}` itself to be saved",
            got="the same numbers in memory of their own",
            fix=f"save `{name}`: PyTorch raises where it is written into before backward",
        )


def _copied(subject: Subject, example: Example) -> set[str]:
    """The inputs of which a copy is saved, and which are not themselves inputs or outputs."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return tensor

    with saving(subject.target, pack):
        run = subject.run(example)
    around = [*tensors_in(list(run.passed)), *run.outputs]
    own = [t for t in saved if not any(share_memory(t, other) for other in around)]
    return {
        name
        for name, arg in zip(run.names, run.passed, strict=False)
        if can_differ(arg) and arg.numel() >= LEAST and any(_is_equal(arg, t) for t in own)
    }


def _is_equal(arg: Tensor, saved: Tensor) -> bool:
    if arg.dtype != saved.dtype or arg.shape != saved.shape or saved.layout != torch.strided:
        return False
    return torch.equal(arg.detach(), saved)


def _negated(tensor: Tensor) -> Tensor:
    return -tensor.detach() if can_differ(tensor) else tensor


def _mixed(tensor: Tensor) -> Tensor:
    """Every other entry with the other sign, and larger."""
    if not can_differ(tensor):
        return tensor
    signs = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape) % 2 * 2 - 1
    return tensor.detach() * signs * 3
