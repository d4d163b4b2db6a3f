"""Inputs that forward writes into, and the marks that say so."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pullback.check.findings.explaining import COMPARING, IN_PLACE, Cause
from pullback.check.findings.facts import At, Input
from pullback.check.findings.registered import Registered
from pullback.check.inputs.others import other_values
from pullback.check.repro.calls import changed_by_forward
from pullback.check.subject.subject import (
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.check.subject.writes import Written, written_inputs
from pullback.check.watching.dispatch import foreign_calls
from pullback.check.watching.snapshot import Snapshot
from pullback.check.watching.spy import marking_of
from pullback.judge.example import Example
from pullback.judge.run import run

MUTATED_INPUT = Rule("M701", "mutated-input", "mutation", profile="quick")
NEEDLESS_DIRTY = Rule("M705", "needless-dirty", "mutation", Severity.FRAGILE, "quick")
UNMARKED_DIRTY = Rule("M706", "unmarked-dirty", "mutation", profile="quick")

SHIFTS = (1, 2, 3)


def mutated_input(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input that forward changes without saying so."""
    if not (subject.target.is_function or subject.target.is_op):
        yield from _by_ops(subject)
    for example, written in _written(MUTATED_INPUT, subject):
        if isinstance(written, Skip):
            yield written
        elif not written.is_returned and not subject.target.intent.is_donated(written.name):
            yield _finding(subject, example, written)


def unmarked_dirty(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input that is changed and returned without the mark."""
    for example, written in _written(UNMARKED_DIRTY, subject):
        if isinstance(written, Skip):
            yield written
        elif written.is_returned:
            change = written.change
            yield subject.finding(
                UNMARKED_DIRTY,
                example=example,
                at=At(Input(written.name), change.index, rest=", after forward"),
                expected=change.before.then(", or a mark that says it is changed"),
                got=change.after.then(", and no mark"),
                remedy=written.name,
                fix=f"call ctx.mark_dirty({written.name}) before it is changed",
            )


def _written(rule: Rule, subject: Subject) -> Iterator[tuple[Example, Written | Skip]]:
    """Each input that forward writes into, once as it is returned and once as it is not."""
    seen: set[tuple[str, bool]] = set()
    for example in subject.examples:
        for needs in (None, frozenset[int]()):
            try:
                found = written_inputs(subject, example, needs)
            except ForwardRefusedError as refusal:
                yield example, Skip.refused(rule, "forward refuses", refusal.raised)
                return
            for written in found:
                if (written.name, written.is_returned) not in seen:
                    seen.add((written.name, written.is_returned))
                    yield example, written


def _by_ops(subject: Subject) -> Iterator[Finding]:
    """Findings about ops that a program calls, and that write where their schema says nothing."""
    args = subject.small_given.fresh(needs=frozenset())
    for called in foreign_calls(subject.target.call, args):
        if called.written:
            yield subject.finding(
                MUTATED_INPUT,
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
        MUTATED_INPUT,
        example=example,
        severity=Severity.WRONG if is_at_risk or not written.is_seen else Severity.FRAGILE,
        at=At(Input(written.name), change.index, rest=", after forward"),
        expected=change.before.then(", as before forward"),
        got=change.after,
        fix=f"work on a clone of `{written.name}`, or {said}",
        facts={} if is_op else subject.target.if_meant(written.name),
    )


def needless_dirty(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input that is marked and never written into."""
    given = subject.given
    others = [other_values(given, shift) for shift in SHIFTS]
    untouched: frozenset[int] | None = None
    for example in (given, *others, *(_negated(other) for other in others)):
        found = _marked_in_vain(subject, example)
        if found is None:
            continue
        untouched = found if untouched is None else untouched & found
        if not untouched:
            return
    for position in sorted(untouched or ()):
        name = subject.names[position]
        yield subject.finding(
            NEEDLESS_DIRTY,
            example=given,
            at=At(Input(name)),
            expected="to be changed by forward, as it is marked dirty",
            got="never written into",
            fix=f"leave `{name}` out of ctx.mark_dirty, and do not return it for that reason",
        )


def _negated(example: Example) -> Example:
    return example.map(lambda t: -t if t.is_floating_point() else t, "other values, negated")


def _marked_in_vain(subject: Subject, example: Example) -> frozenset[int] | None:
    """The marked inputs that one call leaves as they are; None where it is not known."""
    marking = marking_of(subject.target)
    if marking is None:
        return None
    args = example.fresh(needs=frozenset())
    places = example.tensors
    snapshot = Snapshot((Input(subject.names[i]), args[i]) for i in places)
    try:
        run(marking.target.call, example, subject.names, args=args)
    except ForwardRefusedError:
        return None
    if not marking.marks:
        return None
    changed = {places[change.place] for change in snapshot.changes()}
    marks = marking.marks[-1]
    return marks.dirty - marks.written - changed


RULES = (
    Registered(
        MUTATED_INPUT,
        mutated_input,
        repros=(changed_by_forward,),
        explains=(
            Cause(
                COMPARING | {"unmarked-dirty"},
                "the next use of that input sees other numbers",
                rank=70,
                is_partial=True,
                raising=IN_PLACE,
            ),
        ),
        page="""
`forward` must not change its inputs, unless it marks them dirty and returns them.

What it checks
    Every tensor among the arguments, also in lists, holds the same numbers after forward as before,
    with grad required and without; an input that is marked dirty and returned may change. Of a
    plain program, only changes that no version counter shows are reported, and those that a custom
    op makes to an argument of its own without a word in its schema.

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
""",
    ),
    Registered(
        NEEDLESS_DIRTY,
        needless_dirty,
        repros=(partial(changed_by_forward, is_needless=True),),
        page="""
An input that is marked dirty must be one that forward changes.

What it checks
    Whether an input marked with `ctx.mark_dirty` was written into at all: its version has not moved
    inside forward, and its numbers stay, with other values too.

Why it matters
    The mark moves the version of the caller's tensor, so that every op that saved it fails in
    backward, and a leaf that requires grad is refused: all for nothing.

Fails
    ctx.mark_dirty(buffer); return x * buffer, buffer

Passes
    return x * buffer

Cannot see
    A write past the version counter that leaves every value tried as it was.
""",
    ),
    Registered(
        UNMARKED_DIRTY,
        unmarked_dirty,
        repros=(changed_by_forward,),
        explains=(
            Cause(
                COMPARING,
                "the next use of that input sees other numbers",
                rank=80,
                is_partial=True,
                raising=IN_PLACE,
            ),
        ),
        page="""
An input that forward changes and returns must be marked dirty.

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
""",
    ),
)
