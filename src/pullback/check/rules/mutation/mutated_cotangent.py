"""`backward` must not change the cotangents it receives.

What it checks
    Every cotangent holds the same numbers after backward as before.

Why it matters
    The engine hands the same tensor to other nodes and to hooks: they see the changed numbers
    (apex#1430, apex#1587: a fused softmax that wrote into `grad_output`).

Fails
    return grad_output.mul_(y)

Passes
    return grad_output * y

Cannot see
    A change that writes back the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.explaining import COMPARING, SHARED, Cause
from pullback.check.facts import At, Cotangent
from pullback.check.repro.calls import changed_by_backward
from pullback.check.snapshot import Snapshot
from pullback.check.subject import BackwardFailedError, Finding, Rule, Skip, Subject

RULE = Rule(code="M702", name="mutated-cotangent", group="mutation", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per cotangent that backward changes."""
    for example in (subject.base, subject.given):
        run = subject.run(example)
        cotangents = subject.cotangents(run, 3)
        named = [(Cotangent(i), c) for i, c in enumerate(cotangents) if c is not None]
        snapshot = Snapshot(named)
        try:
            run.pull(cotangents)
        except BackwardFailedError as failure:
            yield Skip.refused(RULE, "backward fails", failure.raised)
            return
        found = list(snapshot.changes())
        for change in found:
            yield subject.finding(
                RULE,
                example=example,
                at=At(change.thing, change.index, rest=", after backward"),
                expected=change.before.then(", as before backward"),
                got=change.after,
                fix="compute into a new tensor: `g * y` in the place of `g.mul_(y)`",
            )
        if found:
            return


REPROS = (changed_by_backward,)

EXPLAINS = (
    Cause(
        COMPARING,
        "what is computed from the cotangent after that is wrong",
        rank=60,
        is_partial=True,
        raising=SHARED,
    ),
)
