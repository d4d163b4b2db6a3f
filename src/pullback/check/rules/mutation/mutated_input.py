"""`forward` must not change its inputs, unless it marks them dirty and returns them.

What it checks
    Every tensor among the arguments, also in lists, holds the same numbers after forward as before,
    with grad required and without; an input that is marked dirty and returned may change. Of a
    plain program, only changes that no version counter shows are told, and those that a custom op
    makes to an argument of its own without a word in its schema.

Why it matters
    Another op may have saved the same tensor: its gradient is then wrong, with no error, as in
    Liger#272, where forward stored the gradient into its input. A buffer that needs no gradient is
    less at risk, but its change is lost under `torch.compile` and made twice under checkpointing.

Fails
    x.mul_(scale); return x.clone()

Passes
    ctx.mark_dirty(x); x.mul_(scale); return x

Cannot see
    A change that writes back the same numbers. An input given away on purpose is declared:
    `declares = {"donates": "x"}`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.dispatch import foreign_calls
from pullback.check.explaining import COMPARING, IN_PLACE, Cause
from pullback.check.facts import At, Input
from pullback.check.repro.calls import changed_by_forward
from pullback.check.subject import Finding, ForwardRefusedError, Rule, Severity, Skip, Subject
from pullback.check.writes import Written, written_inputs
from pullback.judge.example import Example

RULE = Rule(code="M701", name="mutated-input", group="mutation", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input that forward changes without saying so."""
    told: set[str] = set()
    if not (subject.target.is_function or subject.target.is_op):
        yield from _by_ops(subject)
    for example in subject.examples:
        for needs in (None, frozenset[int]()):
            try:
                found = written_inputs(subject, example, needs)
            except ForwardRefusedError as refusal:
                yield Skip.refused(RULE, "forward refuses", refusal.raised)
                return
            for written in found:
                if written.is_returned or written.name in told:
                    continue
                if subject.target.intent.is_donated(written.name):
                    continue
                told.add(written.name)
                yield _finding(subject, example, written)


def _by_ops(subject: Subject) -> Iterator[Finding]:
    """Findings about ops that a program calls, and that write where their schema says nothing."""
    args = subject.small_given.fresh(needs=frozenset())
    for called in foreign_calls(subject.target.call, args):
        if called.written:
            yield subject.finding(
                RULE,
                example=subject.small_given,
                at=f"argument `{called.written}` of the op `{called.op.name()}`",
                expected="the same numbers as before, since its schema says nothing else",
                got="others",
                fix=f"work on a clone of `{called.written}`, or name it in `mutates_args`",
            )


def _finding(subject: Subject, example: Example, written: Written) -> Finding:
    change = written.change
    is_op = subject.target.is_op
    said = "name it in `mutates_args`" if is_op else "call ctx.mark_dirty and return it"
    is_at_risk = subject.names.index(written.name) in subject.given.needs
    return subject.finding(
        RULE,
        example=example,
        severity=Severity.WRONG if is_at_risk or not written.is_seen else Severity.FRAGILE,
        at=At(Input(written.name), change.index, rest=", after forward"),
        expected=change.before.then(", as before forward"),
        got=change.after,
        fix=f"work on a clone of `{written.name}`, or {said}",
    )


REPROS = (changed_by_forward,)

EXPLAINS = (
    Cause(
        COMPARING | {"unmarked-dirty"},
        "the next use of that input sees other numbers",
        rank=70,
        is_partial=True,
        raising=IN_PLACE,
    ),
)
