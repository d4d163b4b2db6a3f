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
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from pullback.check.explaining import COMPARING, Cause
from pullback.check.facts import At, Gradient
from pullback.check.repro.calls import begun
from pullback.check.repro.scene import Scene, compared, text_of
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
    worst_of,
)
from pullback.function.isolation import keeping_random_state
from pullback.judge.run import Run
from pullback.judge.tolerances import is_close

RULE = Rule(code="T902", name="random-in-backward", group="state", profile="quick")

START = 987_654_320
SEEDS = tuple(range(START + 1, START + 17))
UNEVEN = 0.7310585786
FIX = "draw in forward and save what was drawn, or the generator's state"


class Generator(Enum):
    """Whose random numbers backward draws."""

    PYTORCH = "PyTorch's generator"
    PYTHON = "Python's generator"
    NUMPY = "NumPy's generator"


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when backward draws, or depends on what it would draw."""
    with keeping_random_state():
        yield from _drawn(subject)


def _drawn(subject: Subject) -> Iterator[Finding | Skip]:
    if subject.fails_at_base:
        yield Skip.refused(RULE, "backward fails at the example", subject.fails_at_base)
        return
    if subject.target.intent.nondeterministic:
        yield Skip(RULE, "declared to be nondeterministic")
        return
    run = subject.run()
    _seed(START)  # an earlier backward may have left the generators where this one will
    before = _states()
    first = run.pull(_uneven(subject, run), retain_graph=True)
    moved = [which for which, state in _states().items() if state != before[which]]
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
        at=f"the state of {moved[0].value}, after backward",
        detail=moved[0],
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


def _states() -> dict[Generator, Any]:
    """The state of each generator."""
    found: dict[Generator, Any] = {
        Generator.PYTORCH: bytes(torch.get_rng_state().tolist()),
        Generator.PYTHON: random.getstate(),
    }
    if _numpy() is not None:
        state = _numpy().random.get_state()
        found[Generator.NUMPY] = (state[1].tobytes(), state[2])
    return found


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if _numpy() is not None:
        _numpy().random.seed(seed % 2**32)


# ---- repros ----


def _redrawn(scene: Scene) -> str:
    """Backward must not depend on the state of a generator, nor move it."""
    moved = scene.about.detail
    if moved is Generator.PYTORCH:
        return text_of(
            begun(scene),
            "before = torch.get_rng_state()",
            scene.pull(),
            'assert torch.equal(torch.get_rng_state(), before), "backward has drawn"',
        )
    if moved is not None:
        return text_of(
            "import random",
            "",
            begun(scene),
            "before = random.getstate()",
            scene.pull(),
            'assert random.getstate() == before, "backward has drawn"',
        )
    return text_of(
        "import random",
        "",
        begun(scene),
        "torch.manual_seed(1), random.seed(1)",
        f"first = [grad.clone() for grad in {scene.pull(options='retain_graph=True')}]",
        "torch.manual_seed(2), random.seed(2)",
        compared(scene.pull(), "first"),
    )


REPROS = (_redrawn,)

EXPLAINS = (
    Cause(
        COMPARING | {"uninitialised-memory"},
        "each backward draws other numbers",
        rank=20,
        holds=lambda finding: finding.about.detail is None,
    ),
)
