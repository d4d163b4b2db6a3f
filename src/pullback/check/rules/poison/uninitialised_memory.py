"""Results must not depend on memory that was never written.

What it checks
    Forward and backward run once more with fresh memory (`torch.empty`, `empty_like`, `new_empty`,
    `empty_strided`, `resize_`) filled with NaN: outputs and gradients stay the same. At the example
    and at zeros and other sizes, since it is the tail of a block that is forgotten.

Why it matters
    `empty` holds zeros most of the time, so tests pass. In a long run the allocator hands out a
    page with NaN in it, and the loss is lost (FBGEMM#5754, flash-linear-attention#892).

Fails
    out = torch.empty_like(x); out[:n] = g[:n]; return out

Passes
    out = torch.zeros_like(x); out[:n] = g[:n]; return out

Cannot see
    Memory that a kernel or NumPy allocates by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from pullback.capture.indices import is_index
from pullback.check.findings.explaining import COMPARING, Cause
from pullback.check.findings.facts import Gradient, Number, Output, Thing
from pullback.check.inputs.arguments import is_order
from pullback.check.inputs.domains import ZERO, changed
from pullback.check.inputs.shapes import batches_of, sizes_of
from pullback.check.repro.context import ReproContext, text_of
from pullback.check.subject.conditions import RUNS, needs
from pullback.check.subject.draws import draws_in_backward
from pullback.check.subject.elsewhere import difference, results_of
from pullback.check.subject.gap import gap_of
from pullback.check.subject.subject import CallError, Finding, Rule, Skip, Subject, each
from pullback.check.subject.trials import failed
from pullback.check.watching.dispatch import Fill, poisoned
from pullback.judge.example import Example, can_differ
from pullback.judge.tolerances import is_close

RULE = Rule("U001", "uninitialised-memory", "poison", profile="quick")

SIZES = 16
ORDINARY = 1.0


@needs(RULE, RUNS)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first result that changes."""
    if draws_in_backward(subject):
        yield Skip(RULE, "backward draws random numbers, so that no two are alike")
        return
    with Fill(ORDINARY):
        one, two = (results_of(subject, subject.base) for _ in range(2))
    if difference(one, two) is not None:
        yield Skip.refused(RULE, "the same call does not give the same twice")
        return
    for example in each(_examples(subject), subject):
        try:
            with Fill(ORDINARY):  # what is there may be the NaN of an earlier try
                usual = _results(subject, example)
            with poisoned():
                now = _results(subject, example)
        except CallError:
            continue
        for thing, expected in usual.items():
            got = now.get(thing)
            if got is None or got.shape != expected.shape or _same(got, expected):
                continue
            gap = gap_of(thing, got, expected)
            yield subject.finding(
                RULE,
                example=example,
                at=gap.at.then(", with fresh memory filled with NaN"),
                expected="one number, whatever fresh memory holds",
                got=gap.got.then(f" where it holds NaN, {gap.expected} where it holds ones"),
                why="an entry of a tensor made by `empty` is read or returned, but never written",
                fix="make the tensor with `zeros`, or write every entry of it",
            )
            return


def _examples(subject: Subject) -> Iterator[Example]:
    yield subject.base
    if subject.small is not subject.base:
        yield subject.small
    yield from failed(subject)  # for this very reason, maybe
    yield from changed(subject.small, ZERO)
    yield from _same_index(subject)
    yield from islice(_lengths(subject.small), 8)
    if subject.profile != "quick":
        yield from islice(sizes_of(subject.small), SIZES)
        yield from islice(batches_of(subject.small), 3)


def _same_index(subject: Subject) -> Iterator[Example]:
    """Index tensors that name one place only, so that no other is written; orders stay orders."""
    example = subject.small
    for position in example.tensors:
        value = example.args[position]
        if is_index(value) and is_order(example, position, subject.names, subject.target.name):
            continue
        if is_index(value) and value.numel() > 1 and int(value.min()) >= 0:
            yield example.put(position, value * 0 + value.min(), "every index the same")


def _lengths(example: Example) -> Iterator[Example]:
    """Lists of counts with one of them smaller: rows that are not full."""
    for position, arg in enumerate(example.args):
        if isinstance(arg, (list, tuple)) and arg and all(type(n) is int for n in arg):
            for k, count in enumerate(arg):
                for less in (1, 2):
                    if count > less:
                        counts = type(arg)([*arg[:k], count - less, *arg[k + 1 :]])
                        yield example.put(position, counts, f"count {k} smaller by {less}")


def _results(subject: Subject, example: Example) -> dict[Thing, Tensor]:
    """Outputs and gradients by what they are."""
    called = subject.run(example)
    outputs = enumerate(called.outputs)
    found: dict[Thing, Tensor] = {Output(i): output.detach().clone() for i, output in outputs}
    grads = called.pull(subject.cotangents(called)) if called.live else {}
    return found | {Gradient(n): g.detach().clone() for n, g in grads.items() if g is not None}


def _same(got: Tensor, expected: Tensor) -> bool:
    if not can_differ(expected) or not can_differ(got):
        return torch.equal(got, expected)
    return is_close(got, expected, 100)


def _filled(context: ReproContext) -> str:
    """Results where PyTorch fills fresh memory with NaN."""
    outputs = ", ".join(context.output(i) for i in range(len(context.run.outputs)))
    results = f"[{outputs}, *{context.pull()}]" if context.used else f"[{outputs}]"
    return text_of(
        context.settings(),
        context.weights(),
        "torch.use_deterministic_algorithms(True, warn_only=True)  # fresh memory is NaN now",
        context.done(),
        f"for got in {results}:",
        '    assert bool(got.isfinite().all()), f"{got=}"',
    )


def _is_spoiled(finding: Finding) -> bool:
    got = finding.about.got
    value = got.value if isinstance(got, Number) else None
    return value is not None and math.isnan(complex(value).real)


REPROS = (_filled,)

EXPLAINS = (
    Cause(
        COMPARING,
        "memory that was never written holds other numbers each time",
        rank=10,
        holds=_is_spoiled,  # where it only differs, an earlier call may have made the difference
    ),
)
