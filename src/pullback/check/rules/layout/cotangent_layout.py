"""`backward` must give the same gradients however its cotangents lie in memory.

What it checks
    Each cotangent with the same values as a dense one, but transposed, sliced, at an offset,
    channels-last, expanded with stride 0, or as a conjugate or negative view.

Why it matters
    Autograd hands on whatever strides the next function's backward made: `sum().backward()` sends
    stride 0, `cat` sends slices, a transpose sends a transposed one. Kernels that assume dense
    memory read the wrong numbers (FlashAttention#355, fla#871, k2#1101) and `view` raises
    (pytorch#194719). `torch.autograd.gradcheck` sends dense cotangents only.

Fails
    flat = torch.as_strided(grad, x.shape, x.stride())

Passes
    flat = grad.contiguous().view(-1)

Cannot see
    A refusal of negative views, and of conjugate ones by NumPy; a layout that none of the above is;
    a backward whose reading of foreign memory happens to give the right numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from pullback.check.findings.facts import Gradient
from pullback.check.inputs.layouts import (
    CONJUGATE,
    LAYOUTS,
    dense,
    is_expanded,
    is_lazy,
    layouts_of,
)
from pullback.check.repro.context import ReproContext, compared, laid_code, text_of
from pullback.check.repro.modes import raises
from pullback.check.subject.gap import gap_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
    each,
)
from pullback.judge.run import copies_of
from pullback.judge.tolerances import is_close

RULE = Rule("Y401", "cotangent-layout", "layout", profile="quick")

Cotangents = Sequence["Tensor | None"]


@dataclass(frozen=True, slots=True)
class Laid:
    """How the cotangent lies in memory: a name in `LAYOUTS`."""

    layout: str


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient changes with the layout, or per refusal."""
    if subject.target.intent.nondeterministic:
        yield Skip(RULE, "results may differ between runs, by declaration")
        return
    run = subject.run(subject.small_given)
    if not run.live:
        return
    plain = subject.cotangents(run)
    try:
        first = run.pull(copies_of(plain))
    except BackwardFailedError as failure:
        yield Skip.refused(RULE, "backward fails at the example", failure.raised)
        return
    if not _is_steady(subject, plain, first):
        yield Skip(RULE, "two runs with one and the same cotangent differ")
        return
    reported: set[str | None] = set()
    for output, label, given in each(_variants(plain), subject):
        want = first
        if is_expanded(label):
            want = subject.run(subject.small_given).pull(
                [None if c is None else dense(c) for c in given]
            )
        yield from _compared(subject, output, label, given, want, reported)


def _variants(plain: Cotangents) -> Iterator[tuple[int, str, list[Tensor | None]]]:
    """Each cotangent in turn in each layout, the others as they are."""
    for number, cotangent in enumerate(plain):
        if cotangent is None:
            continue
        for label, changed in layouts_of(cotangent):
            given = list(copies_of(plain))
            given[number] = changed
            yield number, label, given


def _is_steady(subject: Subject, plain: Cotangents, first: dict[str, Tensor | None]) -> bool:
    again = subject.run(subject.small_given).pull(copies_of(plain))
    return all(is_close(again[name], first[name]) for name in first)


def _compared(
    subject: Subject,
    output: int,
    label: str,
    given: Cotangents,
    want: dict[str, Tensor | None],
    reported: set[str | None],
) -> Iterator[Finding]:
    example = subject.small_given
    run = subject.run(example)
    which = f"of output {output} " if len(run.live) > 1 else ""
    inputs = f"{example.words(subject.names)}; cotangent {which}{label}"
    try:
        have = run.pull(given)
    except BackwardFailedError as failure:
        if None not in reported and not _is_foreign(label, failure):
            reported.add(None)
            yield subject.finding(
                RULE,
                at=f"backward, for a cotangent {which}that is {label}",
                expected="the gradients that a dense cotangent gives",
                got=failure.raised,
                detail=Laid(label),
                inputs=inputs,
                fix="take `grad.contiguous()`, or `reshape` in the place of `view`; for a "
                "conjugate view `grad.resolve_conj()`",
                severity=Severity.FRAGILE,
            )
        return
    for name, got in have.items():
        if name in reported or is_close(got, want[name]):
            continue
        reported.add(name)
        yield subject.finding(
            RULE,
            inputs=inputs,
            detail=Laid(label),
            **gap_of(Gradient(name), got, want[name]).facts(
                expected=", as for the dense cotangent", got=f", for the cotangent {label}"
            ),
            fix="read the cotangent by its own strides and offset, or take `grad.contiguous()` "
            "(for a conjugate or negative view: `resolve_conj()`, `resolve_neg()`) first",
        )


def _is_foreign(label: str, failure: BackwardFailedError) -> bool:
    """Whether a lazy bit was refused that other libraries do not know, or that nobody meets."""
    return is_lazy(label) and (label != CONJUGATE or "numpy" in str(failure.error))


# ---- repros ----


def _compared_with_dense(context: ReproContext) -> str:
    """Gradients for a laid-out cotangent against those for a dense one."""
    lines, dense = _laid_out(context)
    return text_of(lines, f"wanted = pull({dense})", compared("pull(g)", "wanted"))


def _raises_for_layout(context: ReproContext) -> str:
    """What backward raises for a laid-out cotangent, and not for a dense one."""
    lines, dense = _laid_out(context)
    return text_of(lines, f"pull({dense})", f"pull(g){context.raised}")


def _laid_out(context: ReproContext) -> tuple[list[str], str]:
    """The lines that make laid-out cotangents and define `pull`, and the dense ones as code."""
    change = LAYOUTS[context.about.detail.layout]
    plain = context.cotangents()
    laid = [change(cotangent) for cotangent in plain]
    codes = [laid_code(c if new is None else new) for new, c in zip(laid, plain, strict=True)]
    dense = context.each("g.clone(memory_format=torch.contiguous_format)", "g")
    return [*context.settings(), f"g = {context.joined(codes)}", *context.pulling()], dense


REPROS = (_compared_with_dense,)
RAISING = (raises, _raises_for_layout)
