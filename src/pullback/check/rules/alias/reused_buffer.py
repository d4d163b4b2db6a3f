"""What a call has given must not change in the next call.

What it checks
    The outputs of a call are kept while the function is called again with other values, and the
    gradients of a backward while the next one runs: neither changes.

Why it matters
    A buffer that is kept on the class and filled anew saves an allocation, and overwrites what the
    caller still holds: the activations of the first half of a batch, or a `.grad` that has just
    been accumulated, become those of the second.

Fails
    Buffered.out.copy_(x * 2); return Buffered.out.detach()

Passes
    return x * 2

Cannot see
    Buffers that are used again only for other shapes or after several calls.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.findings.explaining import COMPARING, Cause
from pullback.check.findings.facts import Gradient, Output
from pullback.check.inputs.others import other_values
from pullback.check.repro.calls import begun
from pullback.check.repro.context import Repro, ReproContext, compared, text_of
from pullback.check.subject.gap import gap_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    CallError,
    Finding,
    Rule,
    Skip,
    Subject,
)
from pullback.judge.example import Example
from pullback.judge.run import Run

RULE = Rule("A756", "reused-buffer", "alias", profile="quick")

FIX = "make a new tensor in each call, and keep no buffer that is handed out"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per output or gradient that the next call overwrites."""
    if subject.fails_at_base:
        return
    first, second = subject.small, other_values(subject.small)
    try:
        one = subject.run(first)
        kept = [output.detach().clone() for output in one.outputs]
        held = _gradients(subject, one)
        two = subject.run(second)
    except CallError:
        return
    for i, (output, before) in enumerate(zip(one.outputs, kept, strict=True)):
        if not _is_same(output, before):
            yield _finding(subject, first, Output(i), output, before)
    copies = {name: grad.clone() for name, grad in held.items()}
    try:
        _gradients(subject, two, draw=3)
    except BackwardFailedError:
        return
    for name, before in copies.items():
        if not _is_same(held[name], before):
            yield _finding(subject, first, Gradient(name), held[name], before)


def _gradients(subject: Subject, run: Run, draw: int = 0) -> dict[str, Tensor]:
    grads = run.pull(subject.cotangents(run, draw))
    return {name: grad for name, grad in grads.items() if grad is not None}


def _is_same(one: Tensor, two: Tensor) -> bool:
    plain, other = one.detach(), two.detach()
    if not plain.is_floating_point():
        return plain.layout != torch.strided or torch.equal(plain, other)
    return plain.layout != torch.strided or bool(
        torch.equal(plain.nan_to_num(7.0), other.nan_to_num(7.0))
    )


def _finding(
    subject: Subject, example: Example, thing: Output | Gradient, now: Tensor, was: Tensor
) -> Finding:
    return subject.finding(
        RULE,
        example=example,
        **gap_of(thing, now, was).facts(
            ", looked at again after the next call",
            expected=", as it was",
            got=": the next call has written into it",
        ),
        fix=FIX,
    )


def _kept(context: ReproContext) -> Repro:
    """What a call gave must be the same after the next call."""
    other = [f"{name}.detach() * 0.5" if name in context.floats else name for name in context.names]
    again = context.done(out="other", arguments=other[: len(context.example.args)])
    kept = f"[{context.code_of(context.about.thing)}]"
    if isinstance(context.about.thing, Gradient):
        kept = context.pull()
        again = [*context.weights("h", draw=1), *context.done(), context.pull(g="h")]
    return Repro(
        text_of(
            begun(context),
            f"kept = {kept}",
            "wanted = [t.detach().clone() for t in kept]",
            again,
            compared("kept", "wanted"),
        )
    )


REPROS = (_kept,)

EXPLAINS = (Cause(COMPARING, "what is kept from one call changes with the next", rank=130),)
