"""An input that is marked dirty must be one that forward changes.

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
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pullback.check.facts import At, Input
from pullback.check.others import other_values
from pullback.check.repro.calls import changed_by_forward
from pullback.check.snapshot import Snapshot
from pullback.check.spy import marking_of
from pullback.check.subject import Finding, ForwardRefusedError, Rule, Severity, Skip, Subject
from pullback.judge.example import Example
from pullback.judge.run import run

RULE = Rule(
    code="M705", name="needless-dirty", group="mutation", severity=Severity.FRAGILE, profile="quick"
)

SHIFTS = (1, 2, 3)


def check(subject: Subject) -> Iterator[Finding | Skip]:
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
            RULE,
            example=given,
            at=At(Input(name)),
            expected="to be changed by forward, as it is marked dirty",
            got="never written into",
            fix=f"leave `{name}` out of ctx.mark_dirty, and do not return it for that reason",
        )


def _negated(example: Example) -> Example:
    return example.map(lambda t: -t if t.is_floating_point() else t, "other values, negated")


def _marked_in_vain(subject: Subject, example: Example) -> frozenset[int] | None:
    """The marked inputs that one call leaves as they are; None where it cannot be told."""
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


REPROS = (partial(changed_by_forward, is_needless=True),)
