"""A call must leave nothing behind once its results are gone.

What it checks
    After a call with and without backward, and after one that was used under `no_grad`, the inputs
    and outputs are freed as soon as they are dropped: at once, without the garbage collector.

Why it matters
    An output kept on ctx makes a cycle (output, node, ctx, output) that only the garbage collector
    ends: memory grows until it runs (sru#171, pyro#1049). A list on the class that is never emptied
    grows for ever (dgl#1060).

Fails
    ctx.y = y; return y

Passes
    ctx.save_for_backward(y); return y

Cannot see
    Memory of other libraries that holds no tensor of the call.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pullback.check.example import tensors_in
from pullback.check.run import Run
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)

RULE = Rule(
    code="B853", name="leaked-graph", group="memory", severity=Severity.FRAGILE, profile="quick"
)

CALLS = 3


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding: memory that stays, or that only the collector frees."""
    subject.pull()
    was_enabled = gc.isenabled()
    gc.freeze()  # what is there already is not looked at again: a collection takes 0.2 s else
    gc.disable()
    try:
        for with_backward in (True, False):
            alive = _alive_after(subject, with_backward)
            words = "with backward" if with_backward else "whose backward never ran"
            if not alive:
                continue
            gc.collect()
            kept = Counter(name for name, reference in alive if reference() is not None)
            grown = [name for name, count in kept.items() if count == CALLS]
            if grown:
                name = next((n for n in grown if n.startswith("output")), grown[0])
                yield _finding(subject, name, words, "it is still held after a collection", 2)
            elif not kept:
                name = next((n for n, _ in alive if n.startswith("output")), alive[0][0])
                yield _finding(subject, name, words, "it is freed by the garbage collector only", 1)
            else:
                continue
            return
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _alive_after(subject: Subject, with_backward: bool) -> list[tuple[str, Any]]:
    """What of some calls, all made before any is dropped, is still alive after that."""
    references: list[tuple[str, Any]] = []
    runs: list[Run] = []
    try:
        for _ in range(CALLS):
            runs.append(subject.run())
            if with_backward:
                runs[-1].pull(subject.cotangents(runs[-1]))
            references += _references(runs[-1])
    except BackwardFailedError:
        return []
    finally:
        runs.clear()
    return [(name, reference) for name, reference in references if reference() is not None]


def _references(run: Run) -> list[tuple[str, Any]]:
    """Weak references to what went into and came out of one call."""
    named = [(f"input `{name}`", arg) for name, arg in zip(run.names, run.passed, strict=False)]
    named += [(f"output {i}", output) for i, output in enumerate(run.outputs)]
    return [(name, weakref.ref(tensor)) for name, value in named for tensor in tensors_in(value)]


def _finding(subject: Subject, name: str, words: str, got: str, times: int) -> Finding:
    fixes = {
        1: "keep outputs with ctx.save_for_backward, never on a ctx attribute",
        2: "keep nothing of a call on the class, in a global or in a closure",
    }
    if subject.target.is_op:  # no collector looks into C++: an output on its own node stays
        fixes[2] = "keep outputs with save_for_backward, not in saved_data, and none in a global"
    return subject.finding(
        RULE,
        example=subject.base,
        at=f"{name}, after a call {words} whose results were dropped",
        expected="freed at once",
        got=got,
        fix=fixes[times],
    )
