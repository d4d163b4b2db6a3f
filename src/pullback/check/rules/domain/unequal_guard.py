"""A constant that guards against zero must be the same in forward and in backward.

What it checks
    Values of about 1e-6: gradients off by more than a part in twenty. And further down to 1e-12, as
    far as forward's own guard is at work there, its gradient no longer following a power of the
    scale, or less than a quarter of every gradient is left. Each is held against differences of
    forward along directions of the size of the values.

Why it matters
    `eps` is 1e-6 in forward and 1e-8 in backward, or inside of the root in one and outside in the
    other. At ordinary values both are nothing; for rows that are nearly zero, as padding and dead
    units are, the gradient is a hundred times too large.

Fails
    y = x / (n + 1e-6); ...; return grad / (n + 1e-8)

Passes
    y = x / (n + ctx.eps); ...; return grad / (n + ctx.eps)

Cannot see
    A guard of about 1e-12 or less that stands in backward alone: at such values it is the usual way
    to give a direction to what has none. Nor one of backward's own next to a pole of forward: there
    it bounds what is beyond all numbers, on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pullback.check.inputs.domains import changed
from pullback.check.subject.behaved import goes_on_otherwise
from pullback.check.subject.subject import Finding, Rule, Skip, Subject, each
from pullback.check.subject.trials import TriedVariant, is_finite, reported
from pullback.judge.differences import Curve
from pullback.judge.example import Example
from pullback.judge.mismatch import Mismatch, index_of
from pullback.judge.run import CallError, Run, copies_of

RULE = Rule("V610", "unequal-guard", "domain", profile="quick")

FIX = "save the guarded value, or use the very same constant at the same place in backward"

FIRST = 1e-6  # here guards of backward's own count as well
SCALES = (FIRST, 1e-8, 1e-10, 1e-12)
OFF = 0.05  # the share of the largest entry that must be off
LEFT = 0.25  # of a gradient, below which a guard of backward's own counts at any scale
FELT = 1e-3  # of the cotangent that such a gradient must be; beyond 1 / FELT there is a pole
SURE = 0.02  # and how exact the slope must be that says so
DIRECTIONS = 3
COARSE = 1e3  # times the values: steps that a solver's own tolerance does not drown

Cotangents = Sequence["Tensor | None"]
Gradients = dict[int, "Tensor | None"]


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient has another guard than forward."""
    if subject.fails_at_base or any(a.dtype != torch.float64 for a in _inputs(subject.small)):
        return
    for scale in each(SCALES, subject):
        for example in each(_scaled(subject.small, scale), subject):
            found = tuple(_unequal(subject, example, scale))
            if found and not goes_on_otherwise(subject, example):
                yield from reported(subject, RULE, [TriedVariant(example, found)], FIX)
                return


def _inputs(example: Example) -> list[Tensor]:
    return [example.args[i] for i in sorted(example.needs)]


def _scaled(example: Example, scale: float) -> Iterator[Example]:
    """Values of one size, up to a half more, with the signs of the example."""

    def change(tensor: Tensor) -> Tensor:
        size = tensor.abs()
        return torch.where(tensor < 0, -scale, scale) * (1 + size / (2 + 2 * size))

    yield from changed(example, {f"values of about {scale:g}": change})


def _unequal(subject: Subject, example: Example, scale: float) -> Iterator[Mismatch]:
    try:
        called = subject.run(example)
        if not called.live or not is_finite(called):
            return
        cotangents = subject.cotangents(called)
        grads = called.pull(copies_of(cotangents))
    except CallError:
        return
    wants = subject.reference.gradients(example, cotangents, tuple(sorted(example.needs))) or {}
    parts = subject.tangents(example)
    for i, want in wants.items():
        name = called.names[i]
        have = grads.get(name)
        if want is None or have is None or subject.target.intent.is_surrogate(name):
            continue
        part = parts.get(i)
        want, have = want.detach(), have.detach()
        if part is not None:
            want, have = part(want), part(have)
        if have.shape != want.shape or not bool(torch.isfinite(want).all()):
            continue
        off = torch.nan_to_num((have - want).abs(), nan=torch.inf)
        if not bool((off > OFF * want.abs().max()).any()) or name in subject.wrong_names:
            continue
        is_usual = scale < FIRST and not _is_damped(want, have, cotangents)
        if is_usual and not _is_guarded(subject, example, cotangents, i, want):
            continue
        if _is_confirmed(subject, called, cotangents, i, want, have):
            flat = int(off.flatten().argmax())
            truth, got = float(want.flatten()[flat]), float(have.flatten()[flat])
            wrong = int((off > OFF * want.abs()).sum())
            index = index_of(flat, want.shape)
            yield Mismatch(name, i, index, truth, got, wrong, want.numel(), want, have)


def _is_damped(want: Tensor, have: Tensor, cotangents: Cotangents) -> bool:
    """Whether little is left of a gradient that matters, in all its entries.

    Next to a pole it is bounded on purpose.
    """
    given = max(float(c.abs().max()) for c in cotangents if c is not None and c.numel())
    largest = want.abs().max()
    share = (have / want)[want.abs() > 1e-3 * largest]
    is_felt = FELT * given <= float(largest) <= given / FELT
    return is_felt and bool(((share >= 0) & (share < LEFT)).all())


def _is_guarded(
    subject: Subject, example: Example, cotangents: Cotangents, position: int, want: Tensor
) -> bool:
    """Whether forward's gradient leaves a power of the scale: its own constant is near."""
    found = [want]
    for factor in (4.0, 16.0):
        larger = example
        for i in sorted(example.needs):
            if float(example.args[i].abs().max()) < FIRST:
                larger = larger.put(i, example.args[i] * factor, example.label)
        usual = subject.reference.gradients(larger, cotangents, (position,)) or {}
        grad = usual.get(position)
        if grad is None or not bool(torch.isfinite(grad).all()):
            return False
        found.append(grad.detach())
    shown = (want.abs() > 1e-3 * want.abs().max()) & (found[1] != 0)
    first, second = (found[1] / want)[shown], (found[2] / found[1])[shown]
    return bool(((first - second).abs() > 0.02 * first.abs()).any())


def _is_confirmed(
    subject: Subject, called: Run, cotangents: Cotangents, position: int, want: Tensor, have: Tensor
) -> bool:
    """Whether differences of forward, with steps of the size of the values, side with the truth.

    Not where much larger steps side with backward: then a solver of forward's stops too early to
    tell such small values apart, and backward has the slope of what it solves.
    """
    value = called.example.args[position]
    parts = subject.tangents(called.example)
    said_so = False
    for draw in range(DIRECTIONS):
        generator = torch.Generator().manual_seed(draw)
        drawn = 2 * torch.rand(value.shape, generator=generator, dtype=value.dtype) - 1
        along = value * drawn.to(value.device)
        along = along if position not in parts else parts[position](along)
        slope = subject.reference.slope(called.example, cotangents, {position: along})
        said, mine = float((want * along).sum()), float((have * along).sum())
        if not slope.error <= SURE * abs(slope.value):
            continue
        if abs(slope.value - said) > SURE * abs(said) + 4 * slope.error:
            return False
        if abs(slope.value - mine) > OFF * abs(said) / 2 + 4 * slope.error:
            curve = subject.reference.curve(called.example, cotangents, {position: along})
            coarse = _secant(curve)
            if mine and abs(coarse - mine) <= OFF * abs(mine) / 2:
                return False
            said_so = True
    return said_so


def _secant(curve: Curve) -> float:
    """The slope between two points far apart; NaN where forward is not defined there."""
    try:
        return (curve(COARSE) - curve(-COARSE)) / (2 * COARSE)
    except Exception:  # forward's own, at values that it does not take
        return math.nan
