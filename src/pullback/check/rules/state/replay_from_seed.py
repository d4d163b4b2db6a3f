"""Backward must repeat forward's own random numbers, from wherever the generator stood.

What it checks
    A function that draws random numbers is called after others have drawn some from the same seed:
    its gradients are those of the forward that ran.

Why it matters
    `torch.initial_seed()` is where the generator began, not where it stands. A mask that is drawn
    again from it is forward's mask only in a test that has just called `manual_seed`.

Fails
    generator = torch.Generator().manual_seed(ctx.seed)    # torch.initial_seed() of forward

Passes
    ctx.state = torch.get_rng_state()                       # or save the mask

Cannot see
    Generators of other libraries and devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from pullback.check.draws import draws
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Skip,
    Subject,
)

RULE = Rule(code="T906", name="replay-from-seed", group="state", profile="quick")

BEFORE = 7  # numbers that others have drawn


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is another forward's."""
    if subject.fails_at_base or not subject.is_steady or not draws(subject):
        return
    call = _after_others(subject.target.call)
    target = replace(subject.target, thing=call, call=call, function=None)
    later = Subject(target, (subject.small,), profile=subject.profile)
    later.names = subject.names
    try:
        wrong = later.judge(subject.small)
    except (ForwardRefusedError, BackwardFailedError):
        return
    for mismatch in wrong:
        if mismatch.name not in subject.wrong_names:
            yield subject.mismatched(
                RULE,
                mismatch,
                subject.small,
                why=f"{BEFORE} random numbers were drawn between the seed and the call",
                fix="save the state of the generator in forward, or what was drawn",
            )


def _after_others(call: Callable[..., Any]) -> Callable[..., Any]:
    def later(*args: Any) -> Any:
        torch.rand(BEFORE)
        return call(*args)

    return later
