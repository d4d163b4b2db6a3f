"""An `nn.Parameter` must be treated as the tensor that it is.

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
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pullback.check.facts import At, Gradient, Number, Words
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
from pullback.judge.run import Run
from pullback.judge.tolerances import is_close

RULE = Rule(code="Q007", name="parameter-input", group="context", profile="quick")

FIX = "do the same for a parameter as for any other tensor"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per output or gradient that is another one for parameters."""
    if subject.fails_at_base or subject.writes_inputs or not subject.is_steady:
        return
    example = subject.small
    if any(type(example.args[i]) is not torch.Tensor for i in example.needs):
        return
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
            RULE,
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
        index: tuple[int, ...] = ()
        have: Number | Words = Words("None" if got is None else "a gradient")
        expected: Number | Words = Words("another one")
        if got is not None and want is not None and got.shape == want.shape:
            index, have, expected = worst_of(got, want)
        yield subject.finding(
            RULE,
            example=example,
            at=At(Gradient(name), index, rest=", with parameters as inputs"),
            expected=expected.then(", as for plain tensors"),
            got=have,
            fix=FIX,
        )


def _same_outputs(one: Run, two: Run) -> bool:
    pairs = [(one.outputs[k], two.outputs[k]) for k in two.live if k < len(one.outputs)]
    return len(pairs) == len(two.live) and all(is_close(a, b, 100) for a, b in pairs)
