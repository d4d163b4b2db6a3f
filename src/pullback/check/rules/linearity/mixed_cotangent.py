"""Entries of a gradient must not lose their digits to large entries of the cotangent elsewhere.

What it checks
    In float32, the cotangent is made 2^26 times larger at the first index of each dimension, then
    at the last. Entries of the gradient that do not depend on those must come out as they do from
    PyTorch's own gradient of forward; in float64 the backward itself must have them right.

Why it matters
    A sum over what follows, written as the total less the sum over what precedes, is exact on
    paper. One large entry then takes the digits of all the others: a spike in one token's loss
    makes noise of every other token's gradient.

Fails
    return g.sum() - g.cumsum(0) + g  # of a cumulative sum

Passes
    return g.flip(0).cumsum(0).flip(0)

Cannot see
    Entries that depend on all of the cotangent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Gradient, Number
from pullback.check.inputs.dtypes import dtype_of, in_dtype
from pullback.check.repro.context import ReproContext, text_of
from pullback.check.repro.gradients import gradient_lines
from pullback.check.subject.conditions import RUNS, STEADY, needs
from pullback.check.subject.subject import CallError, Finding, Rule, Skip, Subject
from pullback.judge.mismatch import index_of
from pullback.judge.run import copies_of

RULE = Rule("L204", "mixed-cotangent", "linearity", profile="quick")

FACTOR = 2.0**26
LOST = 1e-2  # the share of an entry that must be lost
USUAL = 1e-4  # and of which PyTorch's own gradient loses less
FIX = "sum what belongs to an entry, in place of subtracting from a total what does not"


class End(Enum):
    """Where a cotangent is large, as an index along each dimension."""

    START = 0
    END = -1


@needs(RULE, RUNS, STEADY)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient loses small entries."""
    single = in_dtype(subject.small, torch.float32)
    if single is None or dtype_of(subject.small) != torch.float64:
        return
    done = {name for group, name in subject.reported if group == RULE.group}
    done |= {name for name in subject.names if subject.target.intent.is_surrogate(name)}
    for end in End:
        try:
            run, exact = subject.run(single), subject.run(single.double())
            mixed = _mixed(subject.cotangents(run), end.value)
            if not any(c is not None and c.dim() for c in mixed):
                return
            wide = [None if c is None else c.double() for c in mixed]
            grads, truths = run.pull(copies_of(mixed)), exact.pull(copies_of(wide))
        except CallError:
            return
        places = {name: i for i, name in enumerate(run.names) if name in grads}
        wanted = tuple(places.values())
        usual = subject.reference.gradients(single, mixed, wanted) or {}
        known = subject.reference.gradients(single.double(), wide, wanted) or {}
        for name, place in places.items():
            parts = (grads[name], truths[name], usual.get(place), known.get(place))
            found = _lost(*parts)
            if found is None or name in done or name in subject.wrong_names:
                continue
            done.add(name)
            index, want, have = found
            side = "start" if end is End.START else "end"
            yield subject.finding(
                RULE,
                example=single,
                at=At(Gradient(name), index, rest=f", for a cotangent large at its {side}"),
                expected=Number(want),
                got=Number(have),
                detail=end,
                fix=FIX,
            )


def _mixed(cotangents: Sequence[Tensor | None], where: int) -> list[Tensor | None]:
    """The cotangents, large at one end of each dimension."""
    made: list[Tensor | None] = []
    for cotangent in cotangents:
        if cotangent is None:
            made.append(None)
            continue
        large = cotangent.clone()
        for dim in range(cotangent.dim()):
            if cotangent.shape[dim] > 1:
                end = cotangent.select(dim, where)
                large.select(dim, where).copy_(end * FACTOR)
        made.append(large)
    return made


def _lost(
    got: Tensor | None, truth: Tensor | None, usual: Tensor | None, known: Tensor | None
) -> tuple[tuple[int, ...], float, float] | None:
    """The worst entry that is lost although it can be had, with what it must be and what it is."""
    if got is None or truth is None or usual is None or known is None:
        return None
    if not got.shape == truth.shape == usual.shape == known.shape or got.is_complex():
        return None
    got, usual = got.detach().double(), usual.detach().double()
    truth, known = truth.detach().double(), known.detach().double()
    size = known.abs()
    sure = (truth - known).abs() <= USUAL * size
    sure &= ((usual - known).abs() <= USUAL * size) & (size > 1e-3) & torch.isfinite(size)
    off = torch.where(sure, (got - known).abs() / size, 0.0)
    off = torch.nan_to_num(off, nan=torch.inf)
    if not off.numel() or not bool((off > LOST).any()):
        return None
    flat = int(off.flatten().argmax())
    return index_of(flat, got.shape), float(known.flatten()[flat]), float(got.flatten()[flat])


def _large_at_end(context: ReproContext) -> str:
    """Small entries of the gradient, for a cotangent that is large at one end."""
    if not context.name or not context.is_one:
        return ""
    which, at = context.leaves.index(context.names[context.position]), context.entry
    wide = ", ".join(f"{name}.double()" for name in context.floats)
    dims, end = range(context.run.outputs[0].dim()), context.about.detail.value
    large = [f"g.select({dim}, {end}).mul_(2.0**26)" for dim in dims]
    return text_of(
        gradient_lines(context, weights=[*context.weights(), *large]),
        f"got = gradients({', '.join(context.floats)})[{which}]{at}.double()",
        f"expected = gradients({wide})[{which}]{at}",
        'assert abs(got - expected) <= 1e-2 * abs(expected), f"{got=}, {expected=}"',
    )


REPROS = (_large_at_end,)
