"""Backward must fit a forward that ran under autocast.

What it checks
    For an example in float32, or a function that speaks of autocast: forward runs under
    `torch.autocast` to bfloat16, backward after it, as PyTorch recommends. Where autograd can
    differentiate the same forward so, the gradients are near those of an ordinary call, and as fine
    where autocast leaves forward in float32. A backward that raises there is reported as well,
    unless it says by an error of its own what it does not serve.

Why it matters
    Under autocast some operators of forward give bfloat16 and the cotangent does too, while
    backward runs without autocast and meets both dtypes (flash-linear-attention#70, scattermoe#17).

Fails
    scale = 0.125 if torch.is_autocast_enabled("cpu") else 1.0      # in backward

Passes
    ctx.scale = scale                      # in forward, or @torch.amp.custom_fwd and @custom_bwd

Cannot see
    Other devices' autocast, which has other lists of operators. Examples in float64, which
    autocast leaves as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import Gradient
from pullback.check.inputs.dtypes import dtype_of
from pullback.check.repro.context import ReproContext, indented, text_of
from pullback.check.subject.conditions import DETERMINISTIC, REPEATABLE, RUNS, needs
from pullback.check.subject.elsewhere import Results, results_of
from pullback.check.subject.gap import gap_of
from pullback.check.subject.refusal import is_meant
from pullback.check.subject.subject import (
    BackwardFailedError,
    CallError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.judge.example import Example

RULE = Rule("P004", "autocast-differs", "compile", profile="quick")

NEAR = 0.1  # of the largest entry: bfloat16 has eight bits
EXACT = 1e-5  # where PyTorch's own gradient loses less, nothing in forward is cast by autocast
LOST = 4e-4  # the share that must be lost then


@needs(RULE, RUNS, DETERMINISTIC, REPEATABLE)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when backward fails or is far off."""
    if dtype_of(subject.given) == torch.float64 and not subject.target.serves_low_precision:
        yield Skip(RULE, "the example is in float64, which autocast leaves as it is")
        return
    example = subject.small_given.to(torch.float32)
    try:
        usual = results_of(subject, example)
        called = _cast(subject.target.call)
        subject.run_other(called, example)
    except CallError as refusal:
        yield Skip.refused(RULE, "it refuses float32 or autocast", refusal.raised)
        return
    plain = _plain(subject, example)
    eager = _plain(subject, example, cast=True)
    if plain is None or eager is None:
        yield Skip(RULE, "autograd itself cannot differentiate forward under autocast")
        return
    try:
        got = results_of(subject, example, called)
    except BackwardFailedError as failure:
        if is_meant(failure.error) and not isinstance(failure.error, AssertionError):
            yield Skip.refused(RULE, "backward refuses what autocast gives", failure.raised)
            return
        yield subject.finding(
            RULE,
            example=example,
            severity=Severity.FRAGILE,
            at="backward, after a forward under autocast",
            expected="gradients near those of an ordinary call",
            got=failure.raised,
            fix="decorate both forward and backward: torch.amp.custom_fwd and custom_bwd; or cast "
            "the cotangent to the dtype of what is saved",
        )
        return
    for name, one in got.grads.items():
        two = usual.grads.get(name)
        if one is None or two is None or one.shape != two.shape or one.numel() == 0:
            continue
        usual_error = _apart(eager.get(name), plain.get(name))
        # Forward itself may stop the gradient.
        is_known = eager.get(name) is not None and _is_float32(got.outputs)
        if _is_near(one, two, usual_error, is_known=is_known):
            continue
        gap = gap_of(Gradient(name), one, two)
        yield subject.finding(
            RULE,
            example=example,
            at=gap.at.then(", after a forward under autocast"),
            expected=f"near {gap.expected}, as without autocast",
            got=gap.got,
            fix="let backward do the same whether or not autocast is on while it runs",
        )


def _is_near(got: Tensor, usual: Tensor, error: float, *, is_known: bool) -> bool:
    """Whether a gradient under autocast is no further off than eager's `error` lets expect."""
    size = float(usual.abs().max())
    near = LOST if is_known and error <= EXACT * size else NEAR
    return not bool(torch.isfinite(usual).all()) or _apart(got, usual) <= near * size + 4 * error


def _is_float32(outputs: Sequence[Tensor]) -> bool:
    """Whether the outputs, and so the cotangents, are as fine as without autocast."""
    return all(output.dtype == torch.float32 for output in outputs if output.is_floating_point())


def _cast(call: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return call(*args)

    return function


def _plain(
    subject: Subject, example: Example, *, cast: bool = False
) -> dict[str, Tensor | None] | None:
    """The gradients of forward as plain PyTorch, under autocast or not."""
    program = subject.reference.program
    try:
        found: Results = results_of(subject, example, _cast(program) if cast else program)
    except CallError:
        return None
    return found.grads


def _apart(one: Tensor | None, two: Tensor | None) -> float:
    if one is None or two is None or one.numel() == 0:
        return 0.0
    apart = (one.detach() - two.detach()).abs()
    return float(torch.nan_to_num(apart, nan=float("inf")).max())


def _under_autocast(context: ReproContext) -> str:
    """The gradients of a call under autocast against those of a plain one."""
    cast = f"g = [a.to(b.dtype) for a, b in zip(g, {context.outputs()})]"
    if context.is_one:
        cast = "g = g.to(out.dtype)"
    return text_of(
        context.settings(),
        context.weights(),
        context.done(),
        f"wanted = {context.pull()}",
        'with torch.autocast("cpu", torch.bfloat16):',
        indented(context.done()),
        cast,
        f"for got, expected in zip({context.pull()}, wanted):",
        "    limit = 0.1 * expected.abs().max()",
        '    assert (got - expected).abs().max() <= limit, f"{got=}, {expected=}"',
    )


REPROS = (_under_autocast,)
