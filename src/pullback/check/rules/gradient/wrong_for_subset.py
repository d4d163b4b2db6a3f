"""Gradients must be right for every subset of inputs that require grad.

What it checks
    For each subset of the inputs: forward with only these requiring grad, and backward asked for
    only these (`backward(inputs=...)`), give the same gradients as with all of them; and forward
    gives the same outputs with none.

Why it matters
    Weights are frozen, data needs no gradient, inference needs none at all. Liger#930 crashed when
    nothing required grad, ms-swift#9790 with a frozen weight.

Fails
    if ctx.needs_input_grad[1]: grad_x = ...   # asks about the wrong input

Passes
    if ctx.needs_input_grad[0]: grad_x = ...

Cannot see
    With more than five differentiable inputs, only single inputs and their complements are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from torch import Tensor

from pullback.check.explaining import ANYTHING, Cause
from pullback.check.facts import At, Gradient, Number, Output, Words
from pullback.check.repro.gradients import against_slope, of_number
from pullback.check.repro.modes import Mode, without_grad
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
    each,
    worst_of,
)
from pullback.judge.example import tensors_in
from pullback.judge.tolerances import is_close

RULE = Rule(code="G108", name="wrong-for-subset", group="gradient", profile="quick")

MOST = 5


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding for forward and one per gradient."""
    if subject.fails_at_base:
        yield Skip.refused(RULE, "backward fails at the example", subject.fails_at_base)
        return
    needs = tuple(sorted(subject.base.needs))
    without = list(_without_any(subject))
    yield from without
    whole = subject.pull()
    done: set[str] = set()
    for chosen in each(_subsets(needs), subject):
        words, needed = subject.names_at(chosen), tuple(subject.names[i] for i in chosen)
        for way in ("requires_grad", "inputs"):
            try:
                if way == "requires_grad":
                    grads = subject.pull(needs=chosen)
                else:
                    run = subject.run()
                    wanted = [n for n in (subject.names[i] for i in chosen) if n in run.leaves]
                    grads = run.pull(subject.cotangents(run), wanted=wanted)
            except (BackwardFailedError, ForwardRefusedError) as failure:
                if any(failure.raised == finding.about.raised for finding in without):
                    return  # it is the same defect
                phase = "backward" if isinstance(failure, BackwardFailedError) else "forward"
                yield subject.finding(
                    RULE,
                    example=subject.base,
                    at=f"{phase} when only {words} must have a gradient",
                    expected="the same gradients as with all",
                    got=failure.raised,
                    needed=needed,
                    fix="return None where no gradient is needed, and ask for nothing that is not",
                )
                return
            for name, got in grads.items():
                expected = whole.get(name)
                if name in done or is_close(got, expected, 10):
                    continue
                done.add(name)
                index, have, want = _worst(got, expected)
                yield subject.finding(
                    RULE,
                    example=subject.base,
                    at=At(Gradient(name), index, rest=f", when only {words} needs one"),
                    expected=want,
                    got=have,
                    needed=needed,
                    fix="let needs_input_grad[i] decide about the gradient of argument i",
                )


def _without_any(subject: Subject) -> Iterator[Finding]:
    try:
        plain = subject.run(needs=())
    except ForwardRefusedError as refusal:
        yield subject.finding(
            RULE,
            example=subject.base,
            at="forward when no input requires grad",
            expected="the same outputs as otherwise",
            got=refusal.raised,
            detail=Mode.PLAIN,
            fix="prepare for backward only what backward will need, and forward without it",
        )
        return
    usual = subject.run()
    for i, (got, expected) in enumerate(
        zip(tensors_in(plain.result), tensors_in(usual.result), strict=False)
    ):
        if got.is_floating_point() and not is_close(got, expected, 10):
            index, have, want = worst_of(got, expected)
            yield subject.finding(
                RULE,
                example=subject.base,
                at=At(Output(i), index, rest=", when no input requires grad"),
                expected=want,
                got=have,
                detail=Mode.PLAIN,
                fix="let forward compute the same whether or not a gradient is needed",
            )
            return


def _worst(
    got: Tensor | None, expected: Tensor | None
) -> tuple[tuple[int, ...], Number | Words, Number | Words]:
    """Where two gradients differ most, if both are there and of one shape."""
    if got is not None and expected is not None and got.shape == expected.shape:
        return worst_of(got, expected)
    return (), Words("None" if got is None else "a gradient"), Words("a gradient")


def _subsets(needs: tuple[int, ...]) -> list[tuple[int, ...]]:
    counts = range(1, len(needs)) if len(needs) <= MOST else (1, len(needs) - 1)
    return [chosen for count in counts for chosen in combinations(needs, count)]


REPROS = (against_slope, of_number, without_grad)

EXPLAINS = (
    Cause(
        frozenset({"wrong-under-no-grad"}),
        "forward does something else where no gradient is asked for",
        rank=150,
        holds=lambda finding: finding.about.detail is Mode.PLAIN,
        raising=ANYTHING,
    ),
)
