"""The random numbers of others must not be reset.

What it checks
    Forward and backward run after two different seeds: PyTorch's, Python's and NumPy's generators
    are not in the same state afterwards.

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
import sys
from collections.abc import Iterator
from typing import Any

import torch

from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.function.isolation import keeping_random_state
from pullback.judge.run import Run

RULE = Rule(
    code="T905",
    name="reseeded-generator",
    group="state",
    severity=Severity.FRAGILE,
    profile="quick",
)

# Of forward and of backward: the second run has another seed before forward, the third one before
# backward alone, so that a backward that goes back to forward's own numbers shows.
SEEDS = ((101, 108), (202, 209), (101, 209))


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for forward, or else one for backward."""
    if subject.fails_at_base:
        return
    try:
        with keeping_random_state():
            (ahead, back), (other, _), (_, again) = (_run(subject, *seeds) for seeds in SEEDS)
    except (ForwardRefusedError, BackwardFailedError) as error:
        yield Skip.refused(RULE, "the function raised", error.raised)
        return
    for phase, one, two in (("forward", ahead, other), ("backward", back, again)):
        same = [name for name in one if name in two and _is_same(one[name], two[name])]
        if same:
            yield subject.finding(
                RULE,
                example=subject.small,
                at=f"{phase}: the generator of {same[0]}",
                expected="other random numbers afterwards for every seed before",
                got="the same ones, whatever the seed was",
                fix="draw from a torch.Generator of your own, or inside torch.random.fork_rng()",
            )
            return


def _run(subject: Subject, seed: int, later: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states of the generators after forward, and after backward."""
    args = subject.small.fresh()
    if subject.writes_inputs:
        args = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
    _seed(seed)
    try:
        result = subject.target.call(*args)
    except Exception as error:
        raise ForwardRefusedError(error) from error
    found = _states()
    run = Run(subject.small, subject.names, args, args, result)
    _seed(later)
    run.pull(subject.cotangents(run))
    return found, _states()


def _states() -> dict[str, Any]:
    """The state of each generator that a whole program shares."""
    found = {"PyTorch": torch.get_rng_state(), "Python": random.getstate()}
    return found if _numpy() is None else {**found, "NumPy": _numpy().get_state()}


def _numpy() -> Any:
    """NumPy's generator, where the program has loaded NumPy."""
    return getattr(sys.modules.get("numpy"), "random", None)


def _is_same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    return _parts(one) == _parts(two)


def _parts(state: Any) -> list[Any]:
    """A state as values that can be compared."""
    return [part.tolist() if hasattr(part, "tolist") else part for part in state]


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if _numpy() is not None:
        _numpy().seed(seed)
