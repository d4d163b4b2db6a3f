"""No entry of a gradient may be wrong among very many.

What it checks
    One size so large that the largest input has about 100,000 elements, judged once, every entry.

Why it matters
    A kernel's last block, an index that overflows, a row that is never written: one wrong entry
    among 100,000 is invisible to random directions (`gradcheck(fast_mode=True)` misses a flipped
    sign in one of 1000 entries every time).

Fails
    out[: n // 1024 * 1024] = grad[: n // 1024 * 1024] * w

Passes
    out = grad * w

Cannot see
    Sizes beyond 100,000 elements, and functions whose cost grows too fast to try.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from pullback.check.inputs.shapes import many_of
from pullback.check.retrial import by_shape
from pullback.check.subject import Finding, Rule, Skip, Subject
from pullback.check.trials import reported, trial_of, trials
from pullback.judge.example import Example

RULE = Rule(code="S308", name="wrong-among-many", group="shape", profile="standard")

FIX = "look at the last block, and at the type of the indices"

# Larger and larger, and the seconds that each may take: what grows too fast is left alone.
LADDER = ((1_500, 0.012), (12_000, 0.03))
MANY = 100_000
PAIRS = 1


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input that has a wrong entry in a large example."""
    if subject.fails_at_base:
        return
    found = by_shape(subject, trials(subject, "many", _variants(subject)))
    yield from reported(subject, RULE, found, FIX)


def _variants(subject: Subject) -> Iterator[Example]:
    tried = 0
    for number, example in enumerate(many_of(subject.small, MANY)):
        if tried >= PAIRS:
            return
        if all(_is_cheap(subject, number, total, limit) for total, limit in LADDER):
            tried += 1
            yield example


def _is_cheap(subject: Subject, number: int, total: int, seconds: float) -> bool:
    smaller = list(many_of(subject.small, total))[number : number + 1]
    start = time.process_time()
    is_accepted = bool(smaller) and trial_of(subject, smaller[0]) is not None
    return is_accepted and time.process_time() - start < seconds
