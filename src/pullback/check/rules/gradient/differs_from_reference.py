"""Outputs and gradients must be those of the reference that the check is given.

What it checks
    With `pb.check(F, inputs, reference=f)`: outputs and gradients against those of `f`, a plain
    PyTorch function of the same arguments, at the examples, at other numbers and at other sizes,
    in the dtypes that were given. What the reference computes in double precision is the truth; a
    result may be off by a few times as much as the reference in the given dtype.

Why it matters
    Every other rule takes forward for right and asks whether backward fits it. A kernel whose
    forward is wrong has a backward that agrees with it.

Fails
    return x / (x.pow(2).mean(-1, keepdim=True) + eps)      # the root is left out

Passes
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()

Cannot see
    Anything without a reference. A fault that the reference has as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Gradient, Output, numbers
from pullback.check.inputs.shapes import sizes_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
    each,
)
from pullback.judge.example import Example, can_differ, wide_of
from pullback.judge.mismatch import index_of
from pullback.judge.run import Run, copies_of, run
from pullback.judge.tolerances import USUAL, largest_entry, tolerance_for

RULE = Rule(code="G109", name="differs-from-reference", group="gradient", profile="quick")

MOST = 8  # examples of other sizes
CANCELLED = 1000  # times the rounding of a cotangent: what is left where a gradient is zero


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per output and gradient that is not the reference's."""
    reference = subject.target.compare_with
    if reference is None:
        return
    done: set[Output | Gradient] = set()
    others = islice(sizes_of(subject.given), MOST)
    for example in each(chain(subject.examples, [subject.base], others), subject):
        try:
            plain = run(reference, example, subject.names)
        except ForwardRefusedError as refusal:
            if any(example is one for one in subject.examples):
                yield Skip.refused(RULE, "the reference raised", refusal.raised)
            continue
        with suppress(ForwardRefusedError, BackwardFailedError):
            yield from _compared(subject, plain, done)


def _compared(
    subject: Subject, plain: Run, done: set[Output | Gradient]
) -> Iterator[Finding | Skip]:
    example = plain.example
    called = subject.run(example)
    counts = len(plain.outputs), len(called.outputs)
    if counts[0] != counts[1]:
        reason = f"the reference returns {counts[0]} tensors, and forward {counts[1]}"
        yield Skip.refused(RULE, reason)
        return
    cotangents = subject.cotangents(called)
    exact = _exact(subject, plain)
    rows: Iterator[Row] = _outputs(called, plain, exact)
    has_shapes = all(a.shape == b.shape for a, b in zip(plain.outputs, called.outputs, strict=True))
    if has_shapes and subject.target.intent.surrogate is not True:
        # The outputs come first: backward may fail.
        rows = chain(rows, _gradients(subject, called, plain, exact, cotangents))
    for thing, got, low, want, scale in rows:
        if thing in done:
            continue
        found = _difference(subject, example, thing, (got, low, want), scale)
        if found is not None:
            done.add(thing)
            yield found


def _exact(subject: Subject, plain: Run) -> Run:
    """The reference in double precision, or as it is where it refuses that."""
    reference = subject.target.compare_with
    assert reference is not None
    try:
        exact = run(reference, plain.example.double(), subject.names)
    except ForwardRefusedError:
        return plain
    same = [a.shape == b.shape for a, b in zip(exact.outputs, plain.outputs, strict=False)]
    return exact if len(exact.outputs) == len(plain.outputs) and all(same) else plain


Row = tuple[Output | Gradient, Tensor | None, Tensor | None, Tensor, float]


def _outputs(called: Run, plain: Run, exact: Run) -> Iterator[Row]:
    triples = zip(called.outputs, plain.outputs, exact.outputs, strict=True)
    return ((Output(i), *triple, 0.0) for i, triple in enumerate(triples))


def _gradients(
    subject: Subject,
    called: Run,
    plain: Run,
    exact: Run,
    cotangents: Sequence[Tensor | None],
) -> Iterator[Row]:
    def cast(made: Run) -> list[Tensor | None]:
        pairs = zip(cotangents, made.outputs, strict=True)
        return [None if c is None else c.to(y.dtype) for c, y in pairs]

    got = called.pull(copies_of(cotangents))
    low, want = plain.pull(cast(plain)), exact.pull(cast(exact))
    scale = max((largest_entry(wide_of(c)) for c in cotangents if c is not None), default=0.0)
    for name, truth in want.items():
        if truth is not None and not subject.target.intent.is_surrogate(name):
            yield Gradient(name), got.get(name), low.get(name), truth, scale


def _difference(
    subject: Subject,
    example: Example,
    thing: Output | Gradient,
    values: tuple[Tensor | None, Tensor | None, Tensor],
    scale: float,
) -> Finding | None:
    got, low, want = values
    what = "the reference's gradient" if isinstance(thing, Gradient) else "the reference's output"
    if got is not None and got.shape != want.shape:
        return subject.finding(
            RULE,
            example=example,
            at=At(thing),
            expected=f"the shape of {what}, {list(want.shape)}",
            got=f"{list(got.shape)}",
            fix="give it the shape that the reference gives",
        )
    dtype = next((t.dtype for t in (got, low) if t is not None and can_differ(t)), torch.float64)
    own = 0.0 if low is None else USUAL * largest_entry(wide_of(low) - wide_of(want))
    eps = torch.finfo(dtype).eps
    if not bool(want.any()):  # terms that cancel, each of which may be large
        own = max(own, CANCELLED * eps * scale)
    tolerance = tolerance_for(eps, scale)
    excess = tolerance.measure(want).excess(got) - own
    if not want.numel() or not bool((excess > 0).any()):
        return None
    worst = int(excess.flatten().argmax())
    mine = 0.0 if got is None else got.detach().flatten()[worst].item()
    expected, have = numbers(wide_of(want).flatten()[worst].item(), mine)
    index = index_of(worst, want.shape) or None
    count = int((excess > 0).sum())
    return subject.finding(
        RULE,
        example=example,
        at=At(thing, index, wrong=count, total=want.numel()),
        expected=expected,
        got=have,
        fix=f"compute what {what} is",
    )
