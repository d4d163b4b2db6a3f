"""Random numbers: who draws them, from which state, and in which state they are left."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from pullback.capture.trees import map_leaves
from pullback.check.findings.explaining import COMPARING, Cause
from pullback.check.findings.registered import Registered
from pullback.check.repro.calls import begun
from pullback.check.repro.context import ReproContext, compared, text_of
from pullback.check.subject.conditions import DETERMINISTIC, RUNS, needs
from pullback.check.subject.draws import draws
from pullback.check.subject.gap import copied, gaps
from pullback.check.subject.subject import (
    BackwardFailedError,
    CallError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
    each,
)
from pullback.function.isolation import RandomState
from pullback.judge.run import Run, copies_of

RANDOM_IN_BACKWARD = Rule("T902", "random-in-backward", "state", profile="quick")
RESEEDED_GENERATOR = Rule("T905", "reseeded-generator", "state", Severity.FRAGILE, "quick")
REPLAY_FROM_SEED = Rule("T906", "replay-from-seed", "state", profile="quick")

START = 987_654_320
SEEDS = range(START + 1, START + 17)
# Of forward and of backward: the second run has another seed before forward, the third one before
# backward alone, so that a backward that goes back to forward's own numbers shows.
PAIRS = ((101, 108), (202, 209), (101, 209))
UNEVEN = 0.7310585786
BEFORE = 7  # numbers that others have drawn
FIX = "draw in forward and save what was drawn, or the generator's state"


class Generator(Enum):
    """Whose random numbers are drawn."""

    PYTORCH = "PyTorch"
    PYTHON = "Python"
    NUMPY = "NumPy"


def _states() -> dict[Generator, Any]:
    """The state of each generator that a whole program shares, to be compared."""
    found: dict[Generator, Any] = {
        Generator.PYTORCH: bytes(torch.get_rng_state().tolist()),
        Generator.PYTHON: random.getstate(),
    }
    if "numpy" in sys.modules:
        state = sys.modules["numpy"].random.get_state()
        found[Generator.NUMPY] = (state[1].tobytes(), *state[2:])
    return found


def random_in_backward(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when backward draws, or depends on what it would draw."""
    before = RandomState(())
    try:
        for one in _settings(subject):
            found = list(_drawn(one))
            yield from found
            if any(isinstance(result, Finding) for result in found):
                return
    finally:
        before.restore()


def _settings(subject: Subject) -> Iterator[Subject]:
    """The subject, and where it draws nothing, with the first other argument at which it does."""
    yield subject
    if subject.fails_at_base or draws(subject):
        return
    for example in each(subject.other_arguments(), subject):
        other = subject.other(example)
        try:
            is_drawing = draws(other)
        except Exception:  # whatever forward raises where it refuses that argument
            continue
        if is_drawing:
            yield other
            return


@needs(RANDOM_IN_BACKWARD, RUNS, DETERMINISTIC)
def _drawn(subject: Subject) -> Iterator[Finding | Skip]:
    random_state = RandomState(())
    run = subject.run()
    random_state.seed(START)  # an earlier backward may have left them where this one will
    before = _states()
    first = run.pull(_uneven(subject, run), retain_graph=True)
    moved = [which for which, state in _states().items() if state != before[which]]
    if not moved:
        return
    kept = copied(first)
    is_meant = False
    for seed in SEEDS:
        random_state.seed(seed)
        try:
            again = run.pull(_uneven(subject, run), retain_graph=True)
        except BackwardFailedError:
            break
        for gap in gaps(again, kept):
            if subject.target.intent.is_surrogate(gap.name):
                is_meant = True
                continue
            yield subject.finding(
                RANDOM_IN_BACKWARD,
                example=subject.base,
                **gap.facts(
                    ", with another state of the generator", expected=", as with the first state"
                ),
                fix=FIX,
            )
            return
    if is_meant:
        return
    yield subject.finding(
        RANDOM_IN_BACKWARD,
        example=subject.base,
        severity=Severity.FRAGILE,
        at=f"the state of {moved[0].value}'s generator, after backward",
        detail=moved[0],
        expected="as before backward",
        got="another",
        fix=f"{FIX}, or restore the state after use",
    )


def _uneven(subject: Subject, run: Run) -> list[Tensor | None]:
    """Cotangents that are no multiples of a power of two, which random rounding would not touch."""
    return [None if given is None else given * UNEVEN for given in subject.cotangents(run)]


def _redrawn(context: ReproContext) -> str:
    """Backward must not depend on the state of a generator, nor move it."""
    moved = context.about.detail
    if moved is Generator.PYTORCH:
        return text_of(
            begun(context),
            "before = torch.get_rng_state()",
            context.pull(),
            'assert torch.equal(torch.get_rng_state(), before), "backward has drawn"',
        )
    if moved is not None:
        return text_of(
            "import random",
            "",
            begun(context),
            "before = random.getstate()",
            context.pull(),
            'assert random.getstate() == before, "backward has drawn"',
        )
    return text_of(
        "import random",
        "",
        begun(context),
        "torch.manual_seed(1), random.seed(1)",
        f"first = [grad.clone() for grad in {context.pull(options='retain_graph=True')}]",
        "torch.manual_seed(2), random.seed(2)",
        compared(context.pull(), "first"),
    )


def reseeded_generator(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for forward, or else one for backward."""
    if subject.fails_at_base:
        return
    random_state = RandomState(())
    try:
        (ahead, back), (other, _), (_, again) = (
            _states_after(subject, random_state, *seeds) for seeds in PAIRS
        )
    except CallError as error:
        yield Skip.refused(RESEEDED_GENERATOR, "the function raised", error.raised)
        return
    finally:
        random_state.restore()
    for phase, one, two in (("forward", ahead, other), ("backward", back, again)):
        same = [which for which in one if which in two and one[which] == two[which]]
        if same:
            yield subject.finding(
                RESEEDED_GENERATOR,
                example=subject.small,
                at=f"{phase}: the generator of {same[0].value}",
                expected="other random numbers afterwards for every seed before",
                got="the same ones, whatever the seed was",
                fix="draw from a torch.Generator of your own, or inside torch.random.fork_rng()",
            )
            return


def _states_after(
    subject: Subject, random_state: RandomState, seed: int, later: int
) -> tuple[dict[Generator, Any], dict[Generator, Any]]:
    """The states of the generators after forward, and after backward."""
    args = subject.arguments(subject.small)
    random_state.seed(seed)
    try:
        result = subject.target.call(*args)
    except Exception as error:
        raise ForwardRefusedError(error) from error
    found = _states()
    run = Run(subject.small, subject.names, args, args, result)
    random_state.seed(later)
    run.pull(subject.cotangents(run))
    return found, _states()


def replay_from_seed(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is another forward's."""
    if subject.fails_at_base or not subject.is_steady:
        return
    if not draws(subject):
        yield from _run_again(subject)
        return
    later = subject.other(subject.small, _after_others(subject.target.call))
    try:
        wrong = later.judge(subject.small)
    except CallError:
        return
    for mismatch in wrong:
        if mismatch.name not in subject.wrong_names:
            yield subject.mismatched(
                REPLAY_FROM_SEED,
                mismatch,
                subject.small,
                why=f"{BEFORE} random numbers were drawn between the seed and the call",
                fix="save the state of the generator in forward, or what was drawn",
            )


def _run_again(subject: Subject) -> Iterator[Finding | Skip]:
    """The first gradient that is wrong where a callable argument draws, and backward runs it again.

    One that forward alone calls, or backward alone, may be there for its own phase.
    """
    example = subject.small
    for i, arg in enumerate(example.args):
        if not callable(arg) or isinstance(arg, (Tensor, type)) or subject.time_is_up:
            continue
        seen: list[Tensor] = []
        try:
            called = subject.run(example.put(i, _dropping(arg, seen), f"argument {i} drops a half"))
            ahead = len(seen)
            cotangents = subject.cotangents(called)
            grads = called.pull(copies_of(cotangents))
        except CallError:
            continue
        if not any(torch.equal(a, b) for a in seen[:ahead] for b in seen[ahead:]):
            continue  # called for something else: as the adjoint of a cotangent, say
        found = subject.mismatches(called, cotangents, grads)
        for mismatch in [m for m in found if m.name not in subject.wrong_names][:1]:
            yield subject.mismatched(
                REPLAY_FROM_SEED,
                mismatch,
                called.example,
                severity=Severity.FRAGILE,
                why=f"backward runs `{subject.names[i]}` again, which draws other numbers there",
                fix="save the state of the generators in forward, and put it back around that call",
            )
            return


def _dropping(call: Any, seen: list[Tensor]) -> Any:
    """The callable with half of what it gives dropped at random; `seen` gets what it is given."""

    def dropped(given: Any) -> Any:
        if not isinstance(given, Tensor) or not given.is_floating_point():
            return given
        return given * (torch.rand_like(given) > 0.5)

    def after(args: tuple[Any, ...], result: Any) -> Any:
        given = [arg for arg in args if isinstance(arg, Tensor) and arg.is_floating_point()]
        if not given:
            return result  # it gives weights or settings, and is no part of a network
        seen.append(given[0].detach().clone())
        return map_leaves(dropped, result)

    def counted(*args: Any, **kwargs: Any) -> Any:
        return after(args, call(*args, **kwargs))

    def hook(module: Any, args: Any, result: Any) -> Any:
        return after(args, result)

    if not isinstance(call, torch.nn.Module):
        return counted
    module = copy.deepcopy(call)
    module.register_forward_hook(hook)
    return module


def _after_others(call: Callable[..., Any]) -> Callable[..., Any]:
    def later(*args: Any) -> Any:
        torch.rand(BEFORE)
        return call(*args)

    return later


RULES = (
    Registered(
        RANDOM_IN_BACKWARD,
        random_in_backward,
        repros=(_redrawn,),
        explains=(
            Cause(
                COMPARING | {"uninitialised-memory"},
                "each backward draws other numbers",
                rank=20,
                holds=lambda finding: finding.about.detail is None,
            ),
        ),
        page="""
`backward` must not draw random numbers.

What it checks
    The generators of PyTorch, NumPy and Python have the same state after backward as before it;
    where one has moved, whether the gradients of one graph change with its state. Where forward
    draws nothing, also at another argument with which it does, such as a dropout of more than 0.

Why it matters
    A mask drawn again in backward is not the mask of forward, so the gradient is wrong; and every
    number drawn after it differs, so runs cannot be repeated (xformers#173).

Fails
    return g * (torch.rand_like(g) > p)

Passes
    (mask,) = ctx.saved_tensors; return g * mask

Cannot see
    Generators of other libraries, and those that the function makes for itself. What is drawn where
    forward draws nothing, and is the gradient on average, is an estimate that is meant: a note.
""",
    ),
    Registered(
        RESEEDED_GENERATOR,
        reseeded_generator,
        page="""
The random numbers of others must not be reset.

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
""",
    ),
    Registered(
        REPLAY_FROM_SEED,
        replay_from_seed,
        page="""
Backward must repeat forward's own random numbers, from wherever the generator stood.

What it checks
    A function that draws random numbers is called after others have drawn some from the same seed:
    its gradients are those of the forward that ran. And where backward runs a callable argument
    again, so with one that drops a half of what it gives.

Why it matters
    `torch.initial_seed()` is where the generator began, not where it stands. A mask that is drawn
    again from it is forward's mask only in a test that has just called `manual_seed`.

Fails
    generator = torch.Generator().manual_seed(ctx.seed)    # torch.initial_seed() of forward

Passes
    ctx.state = torch.get_rng_state()                       # or save the mask

Cannot see
    Generators of other libraries and devices.
""",
    ),
)
