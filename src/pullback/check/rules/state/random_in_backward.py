"""`backward` must not draw random numbers.

What it checks
    The generator has the same state after backward as before it, and backward gives the same
    gradients whatever the state of the generator when it runs.

Why it matters
    A mask drawn again in backward is not the mask of forward, so the gradient is wrong; and every
    number drawn after it differs, so runs cannot be repeated (xformers#173).

Fails
    return g * (torch.rand_like(g) > p)

Passes
    (mask,) = ctx.saved_tensors; return g * mask

Cannot see
    Generators of other libraries but NumPy and Python.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from pullback.check.subject import Finding, Rule, Severity, Skip, Subject, is_close, worst_of

RULE = Rule(code="T902", name="random-in-backward", group="state", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when backward draws, or depends on what it would draw."""
    if subject.fails_at_base:
        yield Skip(RULE, f"backward fails at the example: {subject.fails_at_base}")
        return
    if subject.target.intent.nondeterministic:
        yield Skip(RULE, "declared to be nondeterministic")
        return
    run = subject.run()
    cotangents = subject.cotangents(run)
    before = _states()
    first = run.pull(cotangents)
    drew = _states() != before
    again = subject.run()
    torch.default_generator.manual_seed(987_654_321)
    random.seed(987_654_321)
    second = again.pull(cotangents)
    for name, one in first.items():
        two = second[name]
        if one is None or two is None or one.shape != two.shape or is_close(two, one, 100):
            continue
        if subject.target.intent.is_surrogate(name):
            continue
        index, have, want = worst_of(two, one)
        yield subject.finding(
            RULE,
            example=subject.base,
            at=f"gradient of `{name}` at {list(index)}, with another state of the generator",
            expected=f"{want}, as with the first state",
            got=have,
            fix="draw in forward and save what was drawn, or the generator's state",
        )
        return
    if drew:
        yield subject.finding(
            RULE,
            example=subject.base,
            severity=Severity.FRAGILE,
            at="the state of the generator, after backward",
            expected="as before backward",
            got="another",
            fix="draw in forward and save what was drawn, or restore the state after use",
        )


def _states() -> tuple[Any, ...]:
    numpy: Any = sys.modules.get("numpy")
    drawn = "" if numpy is None else str(numpy.random.get_state()[1:3])
    return (bytes(torch.get_rng_state().numpy().tobytes()), random.getstate(), drawn)
