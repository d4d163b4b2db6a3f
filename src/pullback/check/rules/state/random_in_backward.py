"""`backward` must not draw random numbers.

What it checks
    The generators of PyTorch, NumPy and Python have the same state after backward as before it;
    where one has moved, whether the gradients of one graph change with its state.

Why it matters
    A mask drawn again in backward is not the mask of forward, so the gradient is wrong; and every
    number drawn after it differs, so runs cannot be repeated (xformers#173).

Fails
    return g * (torch.rand_like(g) > p)

Passes
    (mask,) = ctx.saved_tensors; return g * mask

Cannot see
    Generators of other libraries, and those that the function makes for itself.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pullback.check.facts import At, Gradient
from pullback.check.run import Run
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
    is_close,
    worst_of,
)

RULE = Rule(code="T902", name="random-in-backward", group="state", profile="quick")

START = 987_654_320
SEEDS = tuple(range(START + 1, START + 17))
UNEVEN = 0.7310585786
FIX = "draw in forward and save what was drawn, or the generator's state"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when backward draws, or depends on what it would draw."""
    with _kept_states():
        yield from _drawn(subject)


def _drawn(subject: Subject) -> Iterator[Finding | Skip]:
    if subject.fails_at_base:
        yield Skip.refused(RULE, f"backward fails at the example: {subject.fails_at_base}")
        return
    if subject.target.intent.nondeterministic:
        yield Skip(RULE, "declared to be nondeterministic")
        return
    run = subject.run()
    _seed(START)  # an earlier backward may have left the generators where this one will
    before = _states()
    first = run.pull(_uneven(subject, run), retain_graph=True)
    moved = [name for name, state in _states().items() if state != before[name]]
    if not moved:
        return
    kept = {n: None if g is None else g.detach().clone() for n, g in first.items()}
    for seed in SEEDS:
        _seed(seed)
        try:
            again = run.pull(_uneven(subject, run), retain_graph=True)
        except BackwardFailedError:
            break
        found = _difference(subject, kept, again)
        if found is not None:
            yield found
            return
    yield subject.finding(
        RULE,
        example=subject.base,
        severity=Severity.FRAGILE,
        at=f"the state of {moved[0]}, after backward",
        expected="as before backward",
        got="another",
        fix=f"{FIX}, or restore the state after use",
    )


def _uneven(subject: Subject, run: Run) -> list[Tensor | None]:
    """Cotangents that are no multiples of a power of two, which random rounding would not touch."""
    return [None if given is None else given * UNEVEN for given in subject.cotangents(run)]


def _difference(
    subject: Subject, first: dict[str, Tensor | None], second: dict[str, Tensor | None]
) -> Finding | None:
    for name, one in first.items():
        two = second[name]
        if one is None or two is None or one.shape != two.shape or is_close(two, one, 100):
            continue
        if subject.target.intent.is_surrogate(name):
            continue
        index, have, want = worst_of(two, one)
        return subject.finding(
            RULE,
            example=subject.base,
            at=At(Gradient(name), index, rest=", with another state of the generator"),
            expected=want.then(", as with the first state"),
            got=have,
            fix=FIX,
        )
    return None


# ---- generators ----


def _numpy() -> Any:
    return sys.modules.get("numpy")


def _states() -> dict[str, Any]:
    """The state of each generator, by name."""
    found: dict[str, Any] = {
        "PyTorch's generator": bytes(torch.get_rng_state().tolist()),
        "Python's generator": random.getstate(),
    }
    if _numpy() is not None:
        state = _numpy().random.get_state()
        found["NumPy's generator"] = (state[1].tobytes(), state[2])
    return found


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if _numpy() is not None:
        _numpy().random.seed(seed % 2**32)


@contextmanager
def _kept_states() -> Iterator[None]:
    """Whatever is drawn inside, the caller's generators go on as if nothing had been."""
    state, python = torch.get_rng_state(), random.getstate()
    numpy = None if _numpy() is None else _numpy().random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        random.setstate(python)
        if numpy is not None:
            _numpy().random.set_state(numpy)
