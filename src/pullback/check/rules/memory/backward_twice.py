"""`backward` must run as often as the graph is kept.

What it checks
    Two calls of backward over one graph, the first with `retain_graph=True`: the second must run,
    and give the same.

Why it matters
    A loss of several terms, or a gradient per sample, pulls more than once. A cache on ctx that is
    cleared by the first backward makes the second fail (dgl#1046); a counter there changes it.

Fails
    kept = ctx.cache.pop()

Passes
    (kept,) = ctx.saved_tensors

Cannot see
    A third backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pullback.check.findings.explaining import REPEATING, Cause, Sign
from pullback.check.repro.calls import second_backward
from pullback.check.subject.conditions import KEEPS_MEMORY, RUNS, needs
from pullback.check.subject.gap import copied, gaps
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)

RULE = Rule("B852", "backward-twice", "memory", Severity.FRAGILE, "quick")


@needs(RULE, RUNS, KEEPS_MEMORY)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when the second backward fails."""
    if subject.target.clears_saved:
        yield Skip(RULE, "it is declared to be good for one backward")
        return
    run = subject.run()
    first = run.pull(subject.cotangents(run), retain_graph=True)
    before = copied(first)
    try:
        second = run.pull(subject.cotangents(run))
    except BackwardFailedError as failure:
        yield subject.finding(
            RULE,
            example=subject.base,
            at="the second backward over one graph, after retain_graph=True",
            expected="the gradients again",
            got=failure.raised,
            fix="keep tensors with ctx.save_for_backward, and clear nothing yourself",
        )
        return
    if not subject.target.intent.nondeterministic and subject.is_steady:
        yield from _differs(subject, before, second)


def _differs(
    subject: Subject, first: dict[str, Tensor | None], second: dict[str, Tensor | None]
) -> Iterator[Finding]:
    for gap in gaps(second, first):
        yield subject.finding(
            RULE,
            example=subject.base,
            **gap.facts(", in the second backward over one graph", expected=", as in the first"),
            fix="let backward change nothing on ctx, and nothing that it will read again",
            severity=Severity.WRONG,
        )


REPROS = (second_backward,)

EXPLAINS = (
    Cause(
        REPEATING - {Sign.AGAIN},
        "no two backwards over one graph give the same",
        rank=140,
        holds=lambda finding: finding.about.raised is None,
    ),
)
