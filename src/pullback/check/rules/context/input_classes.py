"""Inputs that are parameters or wrapper subclasses, and not plain tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.findings.facts import Gradient
from pullback.check.findings.registered import Registered
from pullback.check.subject.conditions import KEEPS_INPUTS, REPEATABLE, RUNS, needs
from pullback.check.subject.gap import gap_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.check.watching.boxes import Box, boxed, opened
from pullback.judge.example import mapped
from pullback.judge.run import Run
from pullback.judge.tolerances import is_close

SUBCLASS_INPUT = Rule("Q003", "subclass-input", "context", Severity.FRAGILE, "quick", wraps=True)
PARAMETER_INPUT = Rule("Q007", "parameter-input", "context", profile="quick")

FIX = "do the same for a parameter as for any other tensor"


@needs(SUBCLASS_INPUT, RUNS, KEEPS_INPUTS, REPEATABLE)
def subclass_input(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per gradient that is wrong."""
    plain = subject.run(subject.small)
    usual = plain.pull(subject.cotangents(plain))
    args = tuple(
        mapped(arg, lambda t: boxed(t).requires_grad_(t.requires_grad))
        for arg in subject.small.fresh()
    )
    try:
        called = subject.run_with(subject.small, args)
    except ForwardRefusedError as refusal:
        yield Skip.refused(SUBCLASS_INPUT, "forward refuses a wrapper subclass", refusal.raised)
        return
    if not all(isinstance(called.outputs[i], Box) for i in called.live) or not called.live:
        yield Skip(SUBCLASS_INPUT, "forward gives plain tensors for wrapped ones")
        return
    cotangents = [None if c is None else boxed(c) for c in subject.cotangents(plain)]
    try:
        grads = called.pull(cotangents)
    except BackwardFailedError as failure:
        yield Skip.refused(SUBCLASS_INPUT, "backward refuses a wrapper subclass", failure.raised)
        return
    for name, got in grads.items():
        expected = usual.get(name)
        if got is None or expected is None:
            continue
        held = opened(got) if isinstance(got, Box) else got
        if held.shape == expected.shape and not is_close(held, expected, 100):
            gap = gap_of(Gradient(name), _dense(held), _dense(expected))
            yield subject.finding(
                SUBCLASS_INPUT,
                example=subject.small,
                **gap.facts(", with wrapped inputs"),
                severity=Severity.WRONG,
                fix="make new tensors from those given: x.new_zeros(...), torch.zeros_like(x)",
            )


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().to_dense() if tensor.layout != torch.strided else tensor


def parameter_input(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per output or gradient that is another one for parameters."""
    if subject.fails_at_base or subject.writes_inputs or not subject.is_steady:
        return
    example = subject.small
    if any(type(example.args[i]) is not torch.Tensor for i in example.needs):
        return
    if example.ties:
        return  # they are those of a module beside them, which others are not
    usual = subject.run(example)
    wanted = usual.pull(subject.cotangents(usual))
    args = list(example.fresh())
    for i in example.needs:
        args[i] = torch.nn.Parameter(args[i].detach())
    try:
        run = subject.run_with(example, tuple(args))
        grads = run.pull(subject.cotangents(run))
    except ForwardRefusedError:
        return
    except BackwardFailedError as failure:
        yield subject.finding(
            PARAMETER_INPUT,
            example=example,
            at="backward, with parameters as inputs",
            expected="the gradients that plain tensors get",
            got=failure.raised,
            severity=Severity.FRAGILE,
            fix=FIX,
        )
        return
    if not _same_outputs(run, usual):
        return  # forward is another one too, and is served as it is
    for name, want in wanted.items():
        got = grads.get(name)
        if is_close(got, want, 100) or name in subject.wrong_names:
            continue
        yield subject.finding(
            PARAMETER_INPUT,
            example=example,
            **gap_of(Gradient(name), got, want).facts(
                ", with parameters as inputs", expected=", as for plain tensors"
            ),
            fix=FIX,
        )


def _same_outputs(one: Run, two: Run) -> bool:
    pairs = [(one.outputs[k], two.outputs[k]) for k in two.live if k < len(one.outputs)]
    return len(pairs) == len(two.live) and all(is_close(a, b, 100) for a, b in pairs)


RULES = (
    Registered(
        SUBCLASS_INPUT,
        subclass_input,
        page="""
A wrapper subclass as input must be served as a plain tensor is, or be refused.

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
""",
    ),
    Registered(
        PARAMETER_INPUT,
        parameter_input,
        page="""
An `nn.Parameter` must be treated as the tensor that it is.

What it checks
    The inputs that require grad as `torch.nn.Parameter`s: outputs and gradients are those of plain
    tensors with the same values.

Why it matters
    Tests give tensors, models give parameters. A branch on `isinstance(w, nn.Parameter)` or on
    `is_leaf` is never run by the one and always by the other.

Fails
    ctx.fused = isinstance(w, torch.nn.Parameter)

Passes
    ctx.fused = ctx.needs_input_grad[1]

Cannot see
    Branches on attributes that a framework sets on its parameters.
""",
    ),
)
