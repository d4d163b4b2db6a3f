"""A backward must keep no cotangent once it is done.

What it checks
    The cotangents of several backwards are freed as soon as the results are dropped: none is still
    there, but for the last one.

Why it matters
    A list on the class that logs cotangents grows by a tensor in every step, until memory ends, and
    each tensor may keep a whole graph alive.

Fails
    Logged.norms.append(grad)

Passes
    Logged.norms.append(float(grad.norm()))

Cannot see
    Copies of the cotangents.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

from pullback.check.subject.subject import CallError, Finding, Rule, Severity, Skip, Subject

RULE = Rule("B857", "kept-cotangent", "memory", Severity.FRAGILE, "quick")

STEPS = 4


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    if subject.fails_at_base:
        return
    kept: list[Any] = []
    for step in range(STEPS):
        try:
            kept += _pulled(subject, step)
        except CallError:
            return
    outputs = len(kept) // STEPS
    if _alive(kept[: len(kept) - outputs]) < STEPS - 1:
        return
    gc.collect()
    alive = _alive(kept[: len(kept) - outputs])
    if outputs and alive >= STEPS - 1:
        yield subject.finding(
            RULE,
            example=subject.small,
            at=f"the cotangents of {STEPS} backwards",
            expected="all freed when the calls are over",
            got=f"{alive} of {len(kept)} still there",
            fix="keep a number or a copy that is overwritten, and no cotangent",
        )


def _pulled(subject: Subject, step: int) -> list[Any]:
    """Weak references to the cotangents of one backward."""
    run = subject.run(subject.small)
    cotangents = subject.cotangents(run, step)
    run.pull(cotangents)
    return [weakref.ref(cotangent) for cotangent in cotangents if cotangent is not None]


def _alive(kept: list[Any]) -> int:
    return sum(reference() is not None for reference in kept)
