"""A call must give the same result whenever it is made.

What it checks
    The same call, with the same random numbers, is made several times, with other calls between:
    outputs and gradients stay the same, and the gradients those of the very first call. A forward
    that draws from the generator of Python or NumPy, which PyTorch does not replay, is told apart.

Why it matters
    A counter, a cache or a running statistic that is read back makes results depend on what came
    before: checkpointing computes something else the second time, and no run can be repeated.

Fails
    MyFunction.calls += 1; return x * MyFunction.calls

Passes
    return x * calls

Cannot see
    Dependence on the clock or on other processes that did not show in a few calls. Results that
    differ by rounding from run to run are declared: `declares = {"nondeterministic": 1e-6}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from pullback.check.findings.explaining import COMPARING, Cause
from pullback.check.findings.facts import At, Gradient, Output, Thing, Words
from pullback.check.inputs.others import other_values
from pullback.check.repro.context import Repro, ReproContext, compared, indented, text_of
from pullback.check.repro.retold import of_gradients
from pullback.check.subject.draws import foreign_states
from pullback.check.subject.gap import copied, gap_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.judge.example import can_differ
from pullback.judge.run import Run
from pullback.judge.tolerances import is_close

LATER, FIRST = ", in a later call with the same arguments", ", as in the first call"

RULE = Rule("T903", "result-depends-on-history", "state", profile="quick")

REPEATS = 6


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first result that differs."""
    before = foreign_states()
    usual = subject.run()
    draws = foreign_states() != before
    outputs = _held(usual)
    try:
        first = copied(usual.pull(subject.cotangents(usual)))
    except BackwardFailedError as failure:
        yield Skip.refused(RULE, "backward fails", failure.raised)
        return
    between = (subject.given, other_values(subject.base))
    for repeat in range(REPEATS):
        for other in between[: repeat % 3]:  # none, one or two: a counter may have a period
            subject.accepts(other)
        run = subject.run()
        held = _held(run)
        try:
            now = run.pull(subject.cotangents(run))
        except BackwardFailedError as failure:
            raises = {"expected": Words("gradients", FIRST), "got": failure.raised}
            yield _finding(subject, {"at": At("backward", rest=LATER), **raises}, draws)
            return
        for thing, got, expected in _pairs(held, outputs, now, first):
            if _is_same(subject, got, expected):
                continue
            yield _finding(
                subject, gap_of(thing, got, expected).facts(LATER, expected=FIRST), draws
            )
            return
    yield from _since_first(subject, draws)


def _since_first(subject: Subject, draws: bool) -> Iterator[Finding]:
    """A finding where the very first backward gave something else than one does now."""
    try:
        now = subject.pull(subject.given) if subject.first_gradients else {}
    except BackwardFailedError:
        return
    for thing, got, expected in _pairs([], [], now, subject.first_gradients):
        if not _is_same(subject, got, expected, 1):
            yield _finding(
                subject, gap_of(thing, got, expected).facts(LATER, expected=FIRST), draws
            )
            return


def _finding(subject: Subject, facts: dict[str, Any], draws: bool) -> Finding:
    facts |= {
        "fix": "let the result depend on the arguments alone; pass what changes as one of them",
    }
    if draws:
        facts |= {
            "why": "forward draws from Python's or NumPy's generator, which PyTorch cannot replay",
            "fix": "draw from PyTorch's generator: checkpointing restores that one",
            "severity": Severity.FRAGILE,
        }
    return subject.finding(RULE, example=subject.base, **facts)


def _pairs(
    held: list[Tensor],
    outputs: list[Tensor],
    now: dict[str, Tensor | None],
    first: dict[str, Tensor | None],
) -> Iterator[tuple[Thing, Tensor, Tensor]]:
    """What can be compared, as it is and as it was in the first call."""
    for i, (output, old) in enumerate(zip(held, outputs, strict=False)):
        if can_differ(output) and output.shape == old.shape:
            yield Output(i), output, old
    for name, gradient in now.items():
        before = first[name]
        if gradient is not None and before is not None and gradient.shape == before.shape:
            yield Gradient(name), gradient, before


def _is_same(subject: Subject, got: Tensor, expected: Tensor, factor: float = 100) -> bool:
    if is_close(got, expected, factor):
        return True
    bound = subject.target.intent.nondeterministic
    return bool(bound) and float((got - expected).abs().max()) <= bound


def _held(run: Run) -> list[Tensor]:
    """What the outputs hold, before backward may write into them."""
    return [output.detach().clone() for output in run.outputs]


def _again(context: ReproContext) -> Repro | str:
    """The same call again must give the same."""
    if context.raised:
        return text_of(
            context.settings(),
            context.weights(),
            context.pulling(),
            "for _ in range(6):",
            f"    pull(g){context.raised}",
        )
    results = ", ".join(context.output(i) for i in range(len(context.run.outputs)))
    text = text_of(
        context.settings(),
        context.weights(),
        "",
        "def results():",
        indented(
            [*context.done(), f"held = [t.detach().clone() for t in [{results}]]"],
        ),
        f"    return [*held, *{context.pull()}]" if context.used else "    return held",
        "",
        "wanted = [t.clone() for t in results()]",
        "for _ in range(6):",
        indented(compared("results()", "wanted")),
    )
    return Repro(text, of_gradients(context, with_outputs=True))


REPROS = (_again,)

EXPLAINS = (Cause(COMPARING | {"uninitialised-memory"}, "no two calls give the same", rank=30),)
