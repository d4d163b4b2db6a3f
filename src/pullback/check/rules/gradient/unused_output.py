"""Gradients must be right when only some of the outputs are used.

What it checks
    The gradients for each output used alone and for each pair left out, with the others unused;
    and for a cotangent that is zero but for one entry.

Why it matters
    A loss rarely uses every output. The unused ones come as zeros, or as `None` after
    `set_materialize_grads(False)`; a backward that mixes them up, or reads them all, is wrong then.

Fails
    return (g_value + g_norm) * y          # of two outputs that need different factors

Passes
    return g_value * y + g_norm * z

Cannot see
    More than eight outputs are not tried in every combination.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor

from pullback.check.facts import at_worst
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Skip,
    Subject,
    each,
)
from pullback.judge.run import copies_of

RULE = Rule(code="G107", name="unused-output", group="gradient", profile="quick")

MOST = 24


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is wrong for a subset of the outputs."""
    if subject.fails_at_base:
        yield Skip.refused(RULE, "backward fails at the example", subject.fails_at_base)
        return
    done: set[str] = set(subject.wrong_names)
    for words, used in each(_subsets(subject.run().live), subject):
        run = subject.run()
        every = subject.cotangents(run, 2)
        cotangents = [c if used is None or i in used else None for i, c in enumerate(every)]
        if used is None:
            cotangents = [None if c is None else _one_entry(c) for c in cotangents]
        try:
            grads = run.pull(copies_of(cotangents))
        except BackwardFailedError as failure:
            yield subject.finding(
                RULE,
                example=subject.base,
                at=f"backward with {words} of the outputs used",
                expected="gradients",
                got=failure.raised,
                used=used,
                why="the cotangent of an unused output is None after set_materialize_grads(False)",
                fix="treat a cotangent that is None as zero",
            )
            return
        for mismatch in subject.mismatches(run, cotangents, grads):
            if mismatch.name in done:
                continue
            done.add(mismatch.name)
            yield subject.mismatched(
                RULE,
                mismatch,
                subject.base,
                at=at_worst(mismatch).then(f", with {words} of the outputs used"),
                used=used,
                fix="let each output's cotangent reach exactly the inputs that output depends on",
            )


def _subsets(live: tuple[int, ...]) -> list[tuple[str, tuple[int, ...] | None]]:
    """The subsets of outputs to try, in words and as positions; None for one entry of each."""
    found: list[tuple[str, tuple[int, ...] | None]] = [("one entry", None)]
    for count in (1, len(live) - 1, 2, 3):
        if 0 < count < len(live):
            for used in combinations(live, count):
                found.append((f"only {_listed(used)}", used))
    return list(dict.fromkeys(found))[:MOST]


def _listed(used: tuple[int, ...]) -> str:
    return " and ".join(f"output {i}" for i in used)


def _one_entry(cotangent: Tensor) -> Tensor:
    one = torch.zeros_like(cotangent)
    if one.numel():
        one.view(-1)[one.numel() // 2] = cotangent.flatten()[one.numel() // 2]
    return one
