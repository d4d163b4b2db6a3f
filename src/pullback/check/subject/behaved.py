"""Whether a forward is such, at inputs that no example shows, that its gradient can be known there.

A root finder that has not converged, a quadrature with too few nodes, a system without a solution:
far from the example forward is no longer what its author promised, and what backward gives there
is no defect. So a gradient that is wrong at other values or sizes counts only where

- forward does not iterate, and at the example its backward is the derivative of forward up to
  rounding, not up to the tolerance of a solver or a quadrature: else it `approximates`;
- outputs and gradients hardly change where the inputs move by next to nothing, as the null space
  of a matrix of lower rank does;
- forward does not go through whole numbers, where only differences tell its slope.
"""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from pullback.capture.indices import is_index
from pullback.capture.seeds import uniform_like
from pullback.check.inputs.shapes import resized, symbols_of
from pullback.check.subject.subject import Subject
from pullback.check.watching.dispatch import views_memory
from pullback.function.isolation import seeded
from pullback.function.modes import DispatchMode
from pullback.judge.example import Example, can_differ, tensors_in, wide_of
from pullback.judge.mismatch import Mismatch
from pullback.judge.reference import FINEST
from pullback.judge.run import CallError, copies_of, cotangents_of, of_span
from pullback.judge.tolerances import CLOSED_FORM, SHARE, STABLE, largest_entry

ROUNDS = 32  # of one op in a forward that iterates
FEWEST = 2  # entries of each dimension, for a loop over them
READS = ("copy_", "_local_scalar_dense")  # a loop over entries has many of these, and no rounds
NOTHING = 1e-12  # of an input, which a sound function does not amplify much
KEPT = "approximates"


def is_behaved(subject: Subject, example: Example, mismatch: Mismatch) -> bool:
    """Whether what is wrong at other inputs than the example's is one of backward's defects."""
    _, is_whole = _known(subject)
    if approximates(subject) or (is_whole and not mismatch.is_seen_by_autograd):
        return False
    return _is_steady(subject, example, mismatch)


def approximates(subject: Subject) -> bool:
    """Whether forward iterates, or its backward is forward's derivative up to a tolerance only."""
    return _known(subject)[0]


def goes_on_otherwise(subject: Subject, example: Example) -> bool:
    """Whether forward has more or fewer rounds at these values, as a solver with a tolerance."""
    usual, here = (_counts(subject, each).most for each in (subject.small, example))
    return usual != here


def _known(subject: Subject) -> tuple[bool, bool]:
    if KEPT not in subject.trials:
        counts = _counts(subject, subject.small)
        iterates = counts.most > ROUNDS and _has_rounds(subject)
        subject.trials[KEPT] = [iterates or not _is_closed_form(subject), counts.is_whole]
    is_near, is_whole = subject.trials[KEPT]
    return is_near, is_whole


class _Counts(DispatchMode):
    """How often each op runs that computes something."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[Any] = Counter()
        self.is_whole = False  # whether many numbers became integers

    @property
    def most(self) -> int:
        """How often the most frequent of them runs."""
        return max(self.ops.values(), default=0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.ops[name] += name not in READS and not views_memory(func)
        result = func(*args, **(kwargs or {}))
        if name == "_to_copy" and args[0].numel() > 1:
            self.is_whole |= can_differ(args[0]) and is_index(result)
        return result


def _has_rounds(subject: Subject) -> bool:
    """Whether as many ops run where there is next to nothing to go through: a solver does that.

    The rounds of a loop over entries, steps or cells are as many as those.
    """
    sizes = {size: FEWEST for size in symbols_of(subject.small) if size > FEWEST}
    least = subject.kept(resized(subject.small, sizes, "as small as can be"))
    return not subject.accepts(least) or _counts(subject, least).most > ROUNDS


def _counts(subject: Subject, example: Example) -> _Counts:
    counts = _Counts()
    try:
        with torch.no_grad(), seeded(), counts:
            subject.target.call(*example.fresh(needs=frozenset()))
    except Exception:  # what a mode cannot see it does not count
        return counts
    return counts


def _is_closed_form(subject: Subject) -> bool:
    """Whether the gradients at the example are forward's up to rounding, in double precision."""
    example = subject.small
    if subject.reference.noise_of(example) > FINEST:
        return True  # rounding hides it
    try:
        run = subject.run(example)
        cotangents = subject.cotangents(run)
        grads = run.pull(copies_of(cotangents))
    except CallError:
        return True
    places = tuple(i for i in sorted(example.needs) if subject.names[i] not in subject.wrong_names)
    usual = subject.reference.gradients(example, cotangents, places) or {}
    parts = subject.tangents(example)
    for i, want in usual.items():
        have = grads.get(subject.names[i])
        if want is None or have is None or want.shape != have.shape:
            continue
        part = parts.get(i, _whole)
        if not CLOSED_FORM.admits(part(have.detach()), part(want.detach())):
            return _is_elsewhere(part(have.detach()), part(want.detach()))
    return True


def _whole(gradient: Tensor) -> Tensor:
    return gradient


def _is_elsewhere(have: Tensor, want: Tensor) -> bool:
    """Whether two gradients have nothing to do with each other: forward hides some from PyTorch."""
    apart, size = (have - want).abs().max(), want.abs().max()
    return bool(apart > SHARE * size)


def _is_other_basis(subject: Subject, example: Example) -> bool:
    """Whether an output is a basis, and sizes are others: not each size has as many vectors."""
    shapes = [[t.shape for t in tensors_in(e.args)] for e in (subject.small, example)]
    if shapes[0] == shapes[1]:
        return False
    outputs = subject.run(subject.small).outputs
    drawn = zip(outputs, cotangents_of(outputs, 0), strict=True)
    return any(of_span(o, c) is not c for o, c in drawn)


def _is_steady(subject: Subject, example: Example, mismatch: Mismatch) -> bool:
    """Whether outputs and a gradient hardly move where the inputs move by next to nothing.

    Zeros stay for the gradient: which of several equal entries is chosen may change with them.
    """
    try:
        if _is_other_basis(subject, example):
            return False
        before, near = subject.run(example), subject.run(_moved(subject, example, zeros=True))
        run = subject.run(_moved(subject, example, zeros=False))
        now = run.pull(subject.cotangents(before)).get(mismatch.name)
    except CallError:
        return True  # it keeps to a relation to the last digit
    pairs = zip(before.outputs, near.outputs, strict=True)
    if not all(STABLE.admits(b, a) for a, b in pairs if can_differ(a) and a.shape == b.shape):
        return False
    if now is None or mismatch.have is None or now.shape != mismatch.have.shape:
        return True
    if mismatch.got is None or not isfinite(abs(mismatch.got)):
        return True
    apart = (wide_of(now) - wide_of(mismatch.have)).abs()
    return not bool((apart > SHARE * abs(mismatch.expected - mismatch.got)).any())


def _moved(subject: Subject, example: Example, *, zeros: bool) -> Example:
    """The example moved by next to nothing, its zeros too or not."""
    moved = example
    for i in example.differentiable:
        value = example.args[i]
        if wide_of(value).dtype == value.dtype and not value.is_complex():
            usual = subject.small.args[i] if i < len(subject.small.args) else value
            size = torch.where(value == 0, zeros * largest_entry(usual), value.abs())
            size = torch.where(torch.isfinite(value), size, 0.0)
            step = NOTHING * size * uniform_like(value, 60 + i, -1.0, 1.0)
            moved = moved.put(i, value + step, example.label)
    return subject.kept(moved)
