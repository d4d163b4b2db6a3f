"""`backward` must not change inputs, outputs or what was saved.

What it checks
    After backward the inputs and the outputs hold what they held before it; so do saved tensors and
    those on ctx where a second backward over the same graph gives other gradients than the first.

Why it matters
    A saved tensor is the caller's own: unsloth#5002 overwrote the saved logits and returned them,
    Liger#254 wrote into saved inputs and broke the op before it.

Fails
    (y,) = ctx.saved_tensors; return y.mul_(g)

Passes
    (y,) = ctx.saved_tensors; return y * g

Cannot see
    A change that writes back the same numbers. An input given away on purpose is declared:
    `declares = {"donates": "x"}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from torch import Tensor

from pullback.check.explaining import ANYTHING, REPEATING, SHARED, Cause, Sign
from pullback.check.facts import At, Gradient, Input, Output, Thing
from pullback.check.repro.calls import changed_by_backward
from pullback.check.snapshot import Snapshot, share_memory
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Skip,
    Subject,
    differing,
)
from pullback.judge.example import tensors_in
from pullback.judge.run import Run


class Damage(Enum):
    """What became of a tensor that was saved, where that is not a number that changed."""

    FREED = "its memory is gone"


RULE = Rule(code="M703", name="mutated-saved", group="mutation", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per tensor that backward changes, or for a second backward that differs."""
    intent = subject.target.intent
    run = subject.run()
    named: list[tuple[Thing, Tensor]] = [
        (Input(name), tensor)
        for name, arg in zip(subject.names, run.passed, strict=False)
        for tensor in tensors_in(arg)
        if not intent.is_donated(name)
    ]
    named += [(Output(i), output) for i, output in enumerate(run.outputs)]
    snapshot, kept = Snapshot(named), Snapshot(_kept(run))
    try:
        first = run.pull(subject.cotangents(run, 4), retain_graph=True)
    except BackwardFailedError as failure:
        yield Skip.refused(RULE, "backward fails", failure.raised)
        return
    found = list(snapshot.changes())
    for change in found:
        if change.is_freed:
            yield _freed(subject, change.thing)
            continue
        yield subject.finding(
            RULE,
            example=subject.base,
            at=At(change.thing, change.index, rest=", after backward"),
            expected=change.before.then(", as before backward"),
            got=change.after,
            fix="compute into a new tensor, or clone what was saved before writing into it",
        )
    if found or intent.donates or intent.nondeterministic or not subject.is_steady:
        return
    changed = next(kept.changes(), None)
    if changed is not None:
        why = f"{changed.thing} was {changed.before} and is {changed.after} after backward"
        yield from _differs(subject, run, first, why)


def _freed(subject: Subject, thing: Thing) -> Finding:
    """A tensor whose memory is gone; without a repro, which would read it and end the process."""
    return Finding.made(
        RULE,
        at=f"the memory of {thing}, after backward",
        expected="as before backward",
        got="freed",
        detail=Damage.FREED,
        inputs=subject.base.words(subject.names),
        fix="free what backward made itself, and leave what was saved",
    )


def _differs(
    subject: Subject, run: Run, first: dict[str, Tensor | None], why: str
) -> Iterator[Finding]:
    """One finding per gradient that a second backward gives otherwise."""
    before = {name: None if g is None else g.detach().clone() for name, g in first.items()}
    try:
        second = run.pull(subject.cotangents(run, 4))
    except BackwardFailedError:
        return  # `backward-twice` tells of this
    for name, index, have, want in differing(second, before):
        yield subject.finding(
            RULE,
            example=subject.base,
            at=At(Gradient(name), index, rest=", in a second backward over the same graph"),
            expected=want.then(", as in the first"),
            got=have,
            detail=Sign.AGAIN,
            why=why,
            fix="let backward leave what was saved as it is",
        )


def _kept(run: Run) -> Iterator[tuple[Thing, Tensor]]:
    """What the node of an output holds and neither an input nor an output does, by name."""
    known = [*tensors_in(run.passed), *run.outputs]
    for node in dict.fromkeys(output.grad_fn for output in run.outputs):
        saved = getattr(node, "saved_tensors", ())
        named = [(f"saved tensor {i}", t) for i, t in enumerate(saved) if t is not None]
        held = getattr(node, "__dict__", {})
        named += [(f"`ctx.{name}`", t) for name, value in held.items() for t in tensors_in(value)]
        for name, tensor in named:
            if not any(share_memory(tensor, other) for other in known):
                yield name, tensor


REPROS = (changed_by_backward,)

EXPLAINS = (
    Cause(
        REPEATING | {"crash", "gradient-aliases-input", "layout", "same-tensor-twice"},
        "what is read next from that memory is no longer there",
        rank=90,
        holds=lambda finding: finding.about.detail is Damage.FREED,
        is_partial=True,
        raising=ANYTHING,
    ),
    Cause(
        REPEATING | {"gradient-aliases-input", "layout", "same-tensor-twice", "reused-buffer"},
        "the next backward, and whoever shares that memory, sees other numbers",
        rank=100,
        holds=lambda finding: finding.about.detail is not Sign.AGAIN,
        is_partial=True,
        raising=SHARED,
    ),
    Cause(
        REPEATING - {Sign.AGAIN},
        "the next backward sees other numbers",
        rank=120,
        is_partial=True,
    ),
)
