"""The random numbers of others must not be reset.

What it checks
    Forward and backward run after two different seeds: PyTorch's and Python's generators are not in
    the same state afterwards, and what was moved in backward was moved on, not set.

Why it matters
    `torch.manual_seed(0)` in a forward makes its dropout repeatable, and gives the whole program
    the same numbers in every step: every other dropout, the order of the data, the noise.

Fails
    torch.manual_seed(0); mask = torch.rand_like(x) > 0.5

Passes
    generator = torch.Generator().manual_seed(0)

Cannot see
    Generators of other libraries and devices.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from pullback.check.run import Run
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
)

RULE = Rule(
    code="T905",
    name="reseeded-generator",
    group="state",
    severity=Severity.FRAGILE,
    profile="quick",
)

SEEDS = (101, 202)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for forward, or else one for backward."""
    if subject.fails_at_base:
        return
    state, other = torch.get_rng_state(), random.getstate()
    try:
        after = [_states(subject, seed) for seed in SEEDS]
    except (ForwardRefusedError, BackwardFailedError) as error:
        yield Skip(RULE, f"the function raised: {error}")
        return
    finally:
        torch.set_rng_state(state)
        random.setstate(other)
    for phase, one, two in zip(("forward", "backward"), *after, strict=True):
        if torch.equal(one[0], two[0]) or one[1] == two[1]:
            yield subject.finding(
                RULE,
                example=subject.small,
                at=phase,
                expected="other random numbers afterwards for every seed before",
                got="the same ones, whatever the seed was",
                fix="draw from a torch.Generator of your own, or inside torch.random.fork_rng()",
            )
            return


def _states(subject: Subject, seed: int) -> list[tuple[torch.Tensor, object]]:
    """The states of the generators after forward, and after backward."""
    args = subject.small.fresh()
    if subject.writes_inputs:
        args = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
    _seed(seed)
    try:
        result = subject.target.call(*args)
    except Exception as error:
        raise ForwardRefusedError(error) from error
    found = [(torch.get_rng_state(), random.getstate())]
    run = Run(subject.small, subject.names, args, args, result)
    _seed(seed + 7)
    run.pull(subject.cotangents(run))
    return [*found, (torch.get_rng_state(), random.getstate())]


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
