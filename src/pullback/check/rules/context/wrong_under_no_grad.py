"""Forward must give the same outputs whether or not a gradient is recorded.

What it checks
    Forward runs with inputs that need no gradient, under `torch.no_grad()` and in
    `torch.inference_mode()` with tensors made there: the outputs are those of an ordinary call, and
    nothing is raised.

Why it matters
    A function is evaluated far from where it is trained: a buffer that is only made when a gradient
    is needed, or a shortcut for that case, breaks validation and serving (Liger#930).

Fails
    if not any(ctx.needs_input_grad): return x.clone()      # leaves out the scale

Passes
    return x * scale

Cannot see
    Differences that show at other inputs only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import Output
from pullback.check.repro.modes import Mode, without_grad
from pullback.check.subject.gap import gap_of
from pullback.check.subject.subject import (
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.judge.example import can_differ, mapped
from pullback.judge.tolerances import is_close

RULE = Rule("Q001", "wrong-under-no-grad", "context", profile="quick")

MODES: dict[Mode, Callable[[], AbstractContextManager[Any]]] = {
    Mode.PLAIN: nullcontext,
    Mode.NO_GRAD: torch.no_grad,
    Mode.INFERENCE: torch.inference_mode,
}
# In inference mode no graph can be made, not by `enable_grad` either: that is PyTorch's own limit.
NO_GRAPH = ("does not require grad", "Setting requires_grad=True on inference tensor")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first mode in which forward differs or fails."""
    usual, again = ([o.detach().clone() for o in subject.run().outputs] for _ in range(2))
    if not all(_same(one, two) for one, two in zip(usual, again, strict=False)):
        yield Skip.refused(RULE, "the same call does not give the same twice")
        return
    for mode in MODES:
        needs = subject.base.needs if mode is Mode.NO_GRAD else frozenset[int]()
        try:
            outputs = _outputs(subject, mode, needs)
        except ForwardRefusedError as refusal:
            is_inference = mode is Mode.INFERENCE
            if is_inference and any(text in str(refusal.error) for text in NO_GRAPH):
                yield Skip.refused(
                    RULE, "it records a graph of its own, which inference mode refuses"
                )
                continue
            yield subject.finding(
                RULE,
                example=subject.base,
                severity=Severity.FRAGILE,
                at=f"forward, {mode.value}",
                detail=mode,
                expected="the outputs of an ordinary call",
                got=refusal.raised,
                fix="let forward do the same whether or not a gradient will be asked for",
            )
            return
        for i, (got, expected) in enumerate(zip(outputs, usual, strict=False)):
            if _same(got, expected):
                continue
            yield subject.finding(
                RULE,
                example=subject.base,
                **gap_of(Output(i), got, expected).facts(f", {mode.value}"),
                detail=mode,
                fix="let forward do the same whether or not a gradient will be asked for",
            )
            return


def _outputs(subject: Subject, mode: Mode, needs: frozenset[int]) -> list[Tensor]:
    """The outputs of a call made in a mode, with tensors made in it."""
    with MODES[mode]():
        args = subject.base.fresh(needs=needs)
        if torch.is_inference_mode_enabled():
            args = tuple(mapped(arg, lambda t: t.clone()) for arg in args)
        called = subject.run_with(subject.base, args)
        outputs = [output.detach() for output in called.outputs]
    return [output.clone() for output in outputs]


def _same(got: Tensor, expected: Tensor) -> bool:
    if got.shape != expected.shape:
        return False
    if not can_differ(expected) or not can_differ(got):
        return torch.equal(got, expected)
    return is_close(got, expected, 100)


REPROS = (without_grad,)
