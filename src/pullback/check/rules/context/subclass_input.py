"""A wrapper subclass as input must be served as a plain tensor is, or be refused.

What it checks
    Inputs and cotangents are wrapped in a tensor subclass that holds another tensor, as sharded and
    quantised ones do. Where forward and backward accept them, the gradients have the same values.

Why it matters
    Parameters are sharded, quantised or offloaded by wrapping them (pytorch#173123). A rule that
    looks at the type of a tensor, or at its memory, takes another branch there, in silence.

Fails
    return g * w if type(g) is torch.Tensor else g

Passes
    return g * w

Cannot see
    Functions whose forward refuses every wrapper, which is said as a skip. A gradient that comes
    back as a plain tensor with the right values, as `torch.zeros(shape)` makes it, is let be.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.boxes import Box, boxed, opened
from pullback.check.elsewhere import is_repeatable
from pullback.check.facts import At, Gradient
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
    worst_of,
)
from pullback.judge.example import mapped
from pullback.judge.tolerances import is_close

RULE = Rule(
    code="Q003",
    name="subclass-input",
    group="context",
    severity=Severity.FRAGILE,
    profile="quick",
    wraps=True,
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per gradient that is wrong."""
    if subject.fails_at_base:
        yield Skip.refused(RULE, raised=subject.fails_at_base)
        return
    if subject.writes_inputs:
        yield Skip(RULE, "forward changes its inputs")
        return
    if not is_repeatable(subject):
        yield Skip.refused(RULE, "the same call does not give the same twice")
        return
    plain = subject.run(subject.small)
    usual = plain.pull(subject.cotangents(plain))
    args = tuple(
        mapped(arg, lambda t: boxed(t).requires_grad_(t.requires_grad))
        for arg in subject.small.fresh()
    )
    try:
        called = subject.run_with(subject.small, args)
    except ForwardRefusedError as refusal:
        yield Skip.refused(RULE, "forward refuses a wrapper subclass", refusal.raised)
        return
    if not all(isinstance(called.outputs[i], Box) for i in called.live) or not called.live:
        yield Skip(RULE, "forward gives plain tensors for wrapped ones")
        return
    cotangents = [None if c is None else boxed(c) for c in subject.cotangents(plain)]
    try:
        grads = called.pull(cotangents)
    except BackwardFailedError as failure:
        yield Skip.refused(RULE, "backward refuses a wrapper subclass", failure.raised)
        return
    for name, got in grads.items():
        expected = usual.get(name)
        if got is None or expected is None:
            continue
        held = opened(got) if isinstance(got, Box) else got
        if held.shape == expected.shape and not is_close(held, expected, 100):
            index, have, want = worst_of(_dense(held), _dense(expected))
            yield subject.finding(
                RULE,
                example=subject.small,
                at=At(Gradient(name), index, rest=", with wrapped inputs"),
                expected=want,
                got=have,
                severity=Severity.WRONG,
                fix="make new tensors from those given: x.new_zeros(...), torch.zeros_like(x)",
            )


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().to_dense() if tensor.layout != torch.strided else tensor
