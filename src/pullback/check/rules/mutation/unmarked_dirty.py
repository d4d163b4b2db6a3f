"""An input that forward changes and returns must be marked dirty.

What it checks
    Whether an output is the memory of an input that forward has changed, without `ctx.mark_dirty`.

Why it matters
    Without the mark the output is a second tensor over the same memory, and the caller's own tensor
    keeps its old history: the gradient that flows through it is that of the old value.

Fails
    x.add_(y); return x

Passes
    ctx.mark_dirty(x); x.add_(y); return x

Cannot see
    A change that writes back the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.explaining import COMPARING, IN_PLACE, Cause
from pullback.check.facts import At, Input
from pullback.check.repro.calls import changed_by_forward
from pullback.check.subject import Finding, ForwardRefusedError, Rule, Skip, Subject
from pullback.check.writes import written_inputs

RULE = Rule(code="M706", name="unmarked-dirty", group="mutation", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input that is changed and returned without the mark."""
    told: set[str] = set()
    for example in subject.examples:
        for needs in (None, frozenset[int]()):
            try:
                found = written_inputs(subject, example, needs)
            except ForwardRefusedError as refusal:
                yield Skip.refused(RULE, "forward refuses", refusal.raised)
                return
            for written in found:
                name = written.name
                if not written.is_returned or name in told:
                    continue
                told.add(name)
                yield subject.finding(
                    RULE,
                    example=example,
                    at=At(Input(name), written.change.index, rest=", after forward"),
                    expected=written.change.before.then(", or a mark that says it is changed"),
                    got=written.change.after.then(", and no mark"),
                    fix=f"call ctx.mark_dirty({name}) before it is changed",
                )


REPROS = (changed_by_forward,)

EXPLAINS = (
    Cause(
        COMPARING,
        "the next use of that input sees other numbers",
        rank=80,
        is_partial=True,
        raising=IN_PLACE,
    ),
)
