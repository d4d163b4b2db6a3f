"""A float64 gradient must have float64's digits.

What it checks
    Where the example is in float64, or the profile is deep, the gradients against those of autograd
    over the same forward: where every entry is off by the rounding of float32 (a share of 1e-9 to
    1e-6), here and at other values, something coarse has gone into backward but not into forward.

Why it matters
    A constant that was rounded to float32, or `torch.full(shape, 0.1)` in the default dtype, costs
    half of the digits, and with them the use of float64: line searches and second differences stall
    long before they should.

Fails
    return grad * torch.full(grad.shape, 0.1)      # float32, whatever grad is

Passes
    return grad * 0.1

Cannot see
    Forwards that compute in float32 themselves, and losses of fewer digits. Functions whose example
    is in float32, but in the profile deep.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Gradient
from pullback.check.inputs.others import other_values
from pullback.check.repro.gradients import by_float64, of_number
from pullback.check.subject.subject import CallError, Finding, Rule, Skip, Subject
from pullback.check.subject.trials import is_new
from pullback.judge.example import Example
from pullback.judge.reference import FINEST
from pullback.judge.run import Run

RULE = Rule("D506", "coarse-constant", "dtype", profile="quick")

LEAST, MOST = 1e-9, 1e-6  # the share of an entry that the rounding of float32 is, with some room


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient has too few digits at each of two examples."""
    start = subject.small
    if subject.fails_at_base or subject.target.intent.nondeterministic or not subject.is_steady:
        return
    if any(start.args[i].dtype != torch.float64 for i in start.differentiable):
        return
    if subject.given is not subject.base and subject.profile != "deep":
        return  # whoever gives float32 may never need more
    coarse = _coarse(subject, start)
    if not coarse or subject.reference.noise > FINEST:
        return
    again = _coarse(subject, other_values(start))
    for name, (index, have, want) in coarse.items():
        if subject.target.intent.is_surrogate(name):
            continue
        if name in again and is_new(subject, RULE, name):
            yield subject.finding(
                RULE,
                example=start,
                at=At(Gradient(name), index),
                expected=f"{want:.15g}",
                got=f"{have:.15g}",
                why="the digits are those of float32",
                fix="make constants as Python numbers, and new tensors with the dtype of grad",
            )


def _coarse(subject: Subject, example: Example) -> dict[str, tuple[tuple[int, ...], float, float]]:
    """The gradients of which every entry is off by about the rounding of float32."""
    try:
        run = subject.run(example)
        cotangents = _full(run)
        grads = run.pull(cotangents)
    except CallError:
        return {}
    wanted = {name: i for i, name in enumerate(run.names) if grads.get(name) is not None}
    exact = subject.reference.gradients(example, cotangents, tuple(wanted.values())) or {}
    found = {}
    for name, i in wanted.items():
        got, want = grads[name], exact.get(i)
        if got is None or want is None or got.shape != want.shape or want.dtype != torch.float64:
            continue
        known = torch.isfinite(want) & (want.abs() > 1e-3 * want.abs().max())
        off = torch.where(known, (got - want).abs() / want.abs(), 0.0)
        share = off[known]
        if share.numel() and float(share.median()) > LEAST and float(share.max()) < MOST:
            flat = int(off.flatten().argmax())
            index = tuple(int(k) for k in torch.unravel_index(torch.tensor(flat), want.shape))
            pair = float(got.flatten()[flat]), float(want.flatten()[flat])
            found[name] = (index, *pair)
    return found


def _full(run: Run) -> list[Tensor | None]:
    """Cotangents of which float32 holds each entry."""
    found: list[Tensor | None] = []
    for number, output in enumerate(run.outputs):
        generator = torch.Generator().manual_seed(51 + number)
        values = torch.randn(output.shape, generator=generator)
        found.append(values.to(output) if output.requires_grad else None)
    return found


REPROS = (by_float64, of_number)
