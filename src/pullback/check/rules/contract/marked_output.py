"""An output that has a gradient must not be cut off from it.

What it checks
    Whether nothing flows back at all (no output requires grad, or every gradient is zero) although
    the outputs change smoothly with an input that requires grad; and whether an output is marked
    non-differentiable while backward computes with its cotangent.

Why it matters
    Nothing is raised: the loss goes down by what other paths learn, and everything before this
    function stays as it was initialised. `gradcheck` passes such a function.

Fails
    values, index = x.sort(); ctx.mark_non_differentiable(values)

Passes
    values, index = x.sort(); ctx.mark_non_differentiable(index)

Cannot see
    A side result that is marked on purpose, such as a saved statistic, and one that is marked by
    mistake where backward ignores its cotangent as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Gradient, Output
from pullback.check.repro.calls import requires_grad
from pullback.check.repro.gradients import against_slope, along
from pullback.check.subject.subject import BackwardFailedError, Finding, Rule, Skip, Subject
from pullback.check.watching.spy import spy_on
from pullback.judge.example import can_differ
from pullback.judge.run import Run, cotangents_of
from pullback.judge.tolerances import is_close

RULE = Rule("K804", "marked-output", "contract", profile="quick")

FIX = "mark only integer results non-differentiable, and detach nothing on the way"
PLAIN = "compute outside of torch.no_grad and on nothing detached, or wrap it in a Function"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when nothing has a gradient, or one per output that is cut off."""
    called = subject.run()
    if not called.leaves or subject.target.intent.surrogate is True:
        return
    able = [i for i, output in enumerate(called.outputs) if can_differ(output) and output.numel()]
    marked = [i for i in able if not called.outputs[i].requires_grad]
    if not called.live:
        yield from _all_cut(subject, called, able, "none: no output requires grad")
    elif not subject.wrong_names and _is_all_zero(subject):
        yield from _all_cut(subject, called, able, "zero, as are all gradients")
    elif marked:
        yield from _read_in_backward(subject, marked)


def _is_all_zero(subject: Subject) -> bool:
    """Whether every gradient of a call is zero or absent."""
    try:
        grads = subject.pull().values()
    except BackwardFailedError:
        return False
    return not any(g is not None and bool((g.detach() != 0).any()) for g in grads)


def _all_cut(subject: Subject, called: Run, able: Sequence[int], got: str) -> Iterator[Finding]:
    """No gradient anywhere: a defect if forward moves with an input, by differences."""
    every = cotangents_of(called.outputs, 0)
    cotangents = [c if i in able else None for i, c in enumerate(every)]
    for name, leaf in called.leaves.items():
        position = subject.names.index(name)
        if subject.target.intent.is_surrogate(name) or not _moves(
            subject, cotangents, position, leaf
        ):
            continue
        yield subject.finding(
            RULE,
            example=subject.base,
            at=At(Gradient(name)),
            expected="one that flows, as the outputs change with it",
            got=got,
            fix=FIX if subject.target.is_function else PLAIN,
        )
        return


def _moves(
    subject: Subject, cotangents: Sequence[Tensor | None], position: int, leaf: Tensor
) -> bool:
    """Whether the outputs have a derivative along the input that is not zero, beyond doubt."""
    generator = torch.Generator().manual_seed(11)
    for _ in range(2):
        along = torch.rand(leaf.shape, generator=generator, dtype=torch.float64) + 0.5
        direction = {position: along.to(torch.complex128) if leaf.is_complex() else along}
        slope = subject.reference.slope(subject.base, cotangents, direction)
        left, right = subject.reference.sides(subject.base, cotangents, direction)
        is_smooth = left.is_known and right.is_known and left.agrees(right.value, 4 * right.error)
        if not slope.is_known or not is_smooth:
            return False
        if abs(slope.value) <= 20 * slope.error + 1e-6:
            return False
    return True


def _read_in_backward(subject: Subject, marked: Sequence[int]) -> Iterator[Finding]:
    """Backward asked itself, past the engine, what it makes of the cotangent of a marked output."""
    spy = spy_on(subject.target)
    if spy is None:
        return
    called = subject.run_other(spy.target.call, subject.base)
    node: Any = called.outputs[called.live[0]].grad_fn
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return
    live = subject.cotangents(called)
    pairs = zip(live, called.outputs, strict=True)
    zeros = [torch.zeros_like(o.detach()) if c is None else c for c, o in pairs]
    try:
        usual = _raw(node, zeros)
        for i in marked:
            other = [*zeros[:i], cotangents_of(called.outputs, 7)[i], *zeros[i + 1 :]]
            if _are_same(usual, _raw(node, other)):
                continue
            yield subject.finding(
                RULE,
                example=subject.base,
                at=At(Output(i)),
                expected="to require grad, as backward computes with its cotangent",
                got="marked non-differentiable, so that its cotangent never comes",
                remedy=str(i),
                fix=f"leave output {i} out of ctx.mark_non_differentiable",
            )
    except (BackwardFailedError, RuntimeError, TypeError):
        return


def _raw(node: Any, cotangents: Sequence[Any]) -> tuple[Any, ...]:
    """What the user's backward returns for these cotangents, before the engine looks at it."""
    with torch.no_grad():
        returned = node.apply(*cotangents)
    return returned if isinstance(returned, tuple) else (returned,)


def _are_same(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    pairs = zip(one, two, strict=True)
    return all(
        is_close(a, b, 100)
        for a, b in pairs
        if isinstance(a, (Tensor, type(None))) and isinstance(b, (Tensor, type(None)))
    )


REPROS = (against_slope, requires_grad, along)
