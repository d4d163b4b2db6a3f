"""Calls must not disturb one another.

What it checks
    Two calls with different inputs, and different random numbers, are made before either backward
    runs; the backwards run in both orders, after a third forward, also one with another shape. The
    gradients are those of a single call.

Why it matters
    State on the class, in a module or in a global is overwritten by the next forward: the first
    backward then uses the second call's numbers. Every network that uses a layer twice meets this.

Fails
    MyFunction.mask = x > 0        # in forward, read in backward

Passes
    ctx.save_for_backward(x > 0)

Cannot see
    State that only other processes or devices share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from torch import Tensor

from pullback.check.findings.explaining import ANYTHING, REPEATING, Cause
from pullback.check.findings.facts import Gradient
from pullback.check.inputs.others import other_values
from pullback.check.inputs.shapes import sizes_of
from pullback.check.repro.context import ReproContext, compared, context_at, rounded, text_of
from pullback.check.repro.trying import fails
from pullback.check.subject.conditions import RUNS, needs
from pullback.check.subject.gap import Gap, gap_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
)
from pullback.function.isolation import seeded
from pullback.judge.example import Example, can_differ
from pullback.judge.run import Run
from pullback.judge.tolerances import is_close

RULE = Rule("T901", "two-live-calls", "state", profile="quick")

FIX = "keep what backward needs on ctx, not on the class or in a global"


@needs(RULE, RUNS)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when a call changes what another one gives."""
    if subject.target.intent.nondeterministic or not subject.is_steady:
        yield Skip.refused(RULE, "the gradients differ from run to run")
        return
    one, two = subject.base, other_values(subject.base)
    if not subject.accepts(two):
        two = one
    two = replace(two, seed=one.seed + 1)  # what a call draws belongs to it alone, too
    last = next((e for e in islice(sizes_of(two), 4) if subject.accepts(e)), two)
    try:
        alone = [_alone(subject, example, draw) for draw, example in enumerate((one, two))]
    except BackwardFailedError as failure:
        yield Skip.refused(RULE, "backward fails with other values", failure.raised)
        return
    other = next((e for e in islice(_other_numbers(subject), 4) if subject.accepts(e)), two)
    for order, third in (((0, 1), two), ((1, 0), two), ((0, 1), last), ((0, 1), other)):
        runs = [subject.run(example) for example in (one, two)]
        try:
            subject.run(third)
        except ForwardRefusedError:
            continue
        try:
            grads = {i: _pulled(subject, runs[i], i) for i in order}
        except BackwardFailedError as failure:
            yield subject.finding(
                RULE,
                example=one,
                at="backward of one call after forward of another",
                expected="the gradients of a single call",
                got=failure.raised,
                fix=FIX,
            )
            return
        found = _first_difference(grads, alone)
        if found is not None:
            between = ", with another call between forward and backward"
            facts = found.facts(between, expected=", as in a single call")
            yield subject.finding(RULE, example=one, **facts, fix=FIX)
            return


def _other_numbers(subject: Subject) -> Iterator[Example]:
    """The example with another number among its plain arguments, in the place of one."""
    usual = subject.whole.args
    for example in subject.other_arguments():
        pairs = zip(usual, example.args, strict=True)
        if any(isinstance(old, float) and old is not new for old, new in pairs):
            yield example


def _alone(subject: Subject, example: Example, draw: int) -> dict[str, Tensor | None]:
    """The gradients of a call with no other around it."""
    run = subject.run(example)
    return _pulled(subject, run, draw)


def _pulled(subject: Subject, run: Run, draw: int) -> dict[str, Tensor | None]:
    """The gradients of a call, with the same random numbers for a backward that draws some."""
    with seeded(run.example.seed):
        return run.pull(subject.cotangents(run, draw))


def _first_difference(
    grads: dict[int, dict[str, Tensor | None]], alone: list[dict[str, Tensor | None]]
) -> Gap | None:
    """Where a gradient is not that of a single call."""
    for i, found in grads.items():
        for name, got in found.items():
            expected = alone[i][name]
            if is_close(got, expected, 100):
                continue
            return gap_of(Gradient(name), got, expected)
    return None


# ---- repros ----


def _between(context: ReproContext) -> str:
    """Another call between forward and backward must make no difference."""
    two = other_values(context.example).map(rounded, "other values")
    others = [e for e in (two, *islice(sizes_of(two), 4)) if context.subject.accepts(e)]
    texts = (_with_other(context, other) for other in others)
    return next((text for text in texts if fails(text, context)), "")


def _with_other(context: ReproContext, example: Example) -> str:
    other = context_at(context, example)
    names = [f"other_{name}" for name in context.names]
    lines = [f"other_{line}" for line in other.settings()]
    arguments = [
        f"{name}.clone()" if context.subject.writes_inputs and can_differ(arg) else name
        for name, arg in zip(names, example.args, strict=False)
    ]
    return text_of(
        context.settings(),
        lines,
        context.weights(),
        context.done(),
        f"wanted = {context.pull()}",
        context.done(),
        context.done("other", arguments),
        compared(context.pull(), "wanted"),
    )


REPROS = (_between,)

EXPLAINS = (
    Cause(
        REPEATING,
        "what is not on ctx belongs to the last call",
        rank=50,
        raising=ANYTHING,
    ),
)
