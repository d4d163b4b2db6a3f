"""A checkpointed call must give what an ordinary call gives.

What it checks
    The function runs under `torch.utils.checkpoint`, which runs forward once more before backward:
    the second forward gives the outputs of the first, and the gradients are those of an ordinary
    call. With `use_reentrant` False and True. A backward that raises there, and not in an ordinary
    call, is reported as well.

Why it matters
    Checkpointing replays PyTorch's generators and nothing else. A mask from Python's generator,
    from the clock or from a counter is another one the second time, and the gradient belongs to
    outputs that nobody saw.

Fails
    mask = torch.tensor([random.random() > p for _ in range(n)])

Passes
    mask = torch.rand(n) > p

Cannot see
    Forwards that differ the second time only now and then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from pullback.check.repro.context import ReproContext, compared, indented, text_of
from pullback.check.subject.conditions import DETERMINISTIC, KEEPS_INPUTS, KEEPS_MEMORY, RUNS, needs
from pullback.check.subject.elsewhere import Results, difference, results_of
from pullback.check.subject.gap import Gap
from pullback.check.subject.subject import (
    BackwardFailedError,
    CallError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.judge.example import tensors_in

UNPACKED = "already unpacked once"  # as a checkpoint says of a tensor that is asked for again
ONCE = "read `ctx.saved_tensors` once: a checkpoint gives each tensor once"
OTHERWISE = "what does backward need that a second forward does not give it?"

RULE = Rule("P003", "checkpoint-differs", "compile", Severity.FRAGILE, "quick")


@needs(RULE, RUNS, KEEPS_INPUTS, DETERMINISTIC, KEEPS_MEMORY)
def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first way in which a checkpointed call differs."""
    if _writes(subject):
        yield Skip(RULE, "forward changes its inputs, so that no second run is like the first")
        return
    usual = _seeded(lambda: results_of(subject, subject.base))
    # A reentrant checkpoint passes copies, which are no parameters of a module beside them.
    for reentrant in (False,) if subject.base.ties else (False, True):
        twice = Twice(subject.target.call)
        try:
            got = _checkpointed(subject, twice, reentrant)
        except BackwardFailedError as failure:
            yield subject.finding(
                RULE,
                example=subject.base,
                at=f"backward, under checkpoint(use_reentrant={reentrant})",
                expected="the gradients of an ordinary call",
                got=failure.raised,
                detail=Checkpointed(reentrant),
                fix=ONCE if UNPACKED in failure.raised.text else OTHERWISE,
            )
            return
        except CallError as failure:
            yield Skip.refused(RULE, "torch.utils.checkpoint refuses it", failure.raised)
            continue
        apart = twice.difference() or difference(got, usual)
        if apart is not None:
            yield subject.finding(
                RULE,
                example=subject.base,
                **apart.facts(
                    f", under checkpoint(use_reentrant={reentrant})",
                    expected=", as in the first run",
                ),
                detail=Checkpointed(reentrant),
                fix="draw with PyTorch's generators, which checkpoint replays, and keep no state",
            )
            return


def _writes(subject: Subject) -> bool:
    """Whether forward changes a tensor that it is given, one without a gradient too."""
    called = subject.run()
    pairs = zip(tensors_in(called.passed), tensors_in(subject.base.args), strict=True)
    return any(not torch.equal(new.detach(), old.detach()) for new, old in pairs)


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """Which kind of checkpoint it was."""

    use_reentrant: bool


class Twice:
    """The function, with what it gave each time it ran."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        self.given: list[tuple[Tensor, ...]] = []

    def __call__(self, *args: Any) -> Any:
        """Run forward, and note its outputs."""
        result = self.call(*args)
        self.given.append(tuple(t.detach().clone() for t in tensors_in(result)))
        return result

    def difference(self) -> Gap | None:
        """Where the second run gave other outputs than the first."""
        if len(self.given) < 2:
            return None
        return difference(Results(self.given[1], {}), Results(self.given[0], {}))


def _checkpointed(subject: Subject, twice: Twice, reentrant: bool) -> Results:
    call = _under(twice, reentrant)
    # The reentrant kind works with `backward()` only, not with `torch.autograd.grad`.
    return _seeded(lambda: results_of(subject, subject.base, call, by_field=reentrant))


def _under(twice: Twice, reentrant: bool) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with set_checkpoint_early_stop(False):
            return checkpoint(twice, *args, use_reentrant=reentrant)

    return call


def _seeded(work: Callable[[], Results]) -> Results:
    """With the same numbers of Python's generator each time."""
    state = random.getstate()
    random.seed(20_250_101)
    try:
        return work()
    finally:
        random.setstate(state)


def _second_forward(context: ReproContext) -> str:
    """The second forward of a checkpointed call against the first, then the gradients."""
    reentrant = context.about.detail.use_reentrant
    floats = ", ".join(context.floats)
    outputs = ", ".join(context.output(i) for i in range(len(context.run.outputs)))
    body = [
        f"out = {context.call}({', '.join(context.arguments)})",
        f"seen.append([t.detach().clone() for t in [{outputs}]])",
        "return out",
    ]
    fields = ", ".join(f"{name}.grad" for name in context.leaves)
    zeros = f"[torch.zeros(()) if grad is None else grad for grad in [{fields}]]"
    found = [f"({context.total}).backward()", f"found = {zeros}"]
    return text_of(
        "from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop",
        "",
        context.settings(),
        context.weights(),
        "seen = []",
        ["", f"def call({floats}):", *indented(body), ""],
        "torch.manual_seed(0)",
        f"out = call({floats})",
        f"wanted = {context.pull()}",
        "torch.manual_seed(0)",
        "with set_checkpoint_early_stop(False):",
        f"    out = checkpoint(call, {floats}, use_reentrant={reentrant})",
        indented(found if reentrant else [f"found = {context.pull()}"]),
        compared("seen[2]", "seen[1]"),
        compared("found", "wanted"),
    )


REPROS = (_second_forward,)
