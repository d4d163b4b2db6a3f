"""A call must leave nothing behind once its results are gone.

What it checks
    After a call with and without backward, and after one that was used under `no_grad`, the inputs
    and outputs, and the memory that holds them, are freed as soon as they are dropped: at once,
    without the garbage collector.

Why it matters
    An output kept on ctx makes a cycle (output, node, ctx, output) that only the garbage collector
    ends: memory grows until it runs (sru#171, pyro#1049). A list on the class that is never emptied
    grows for ever (dgl#1060).

Fails
    ctx.y = y; return y

Passes
    ctx.save_for_backward(y); return y

Cannot see
    Memory of other libraries that holds no tensor of the call.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from pullback.check.findings.facts import At, Input, Output
from pullback.check.repro.context import ReproContext, indented, text_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.judge.example import tensors_in
from pullback.judge.run import Run

RULE = Rule("B853", "leaked-graph", "memory", Severity.FRAGILE, "quick")

Kept = Input | Output

CALLS = 3
PLAIN = (Tensor, torch.nn.Parameter)  # a subclass may have no memory of its own


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding: memory that stays, or that only the collector frees."""
    subject.pull()
    was_enabled = gc.isenabled()
    gc.freeze()  # what is there already is not looked at again: a collection takes 0.2 s else
    gc.disable()
    try:
        for with_backward in (True, False):
            alive = _alive_after(subject, with_backward)
            if not alive:
                continue
            gc.collect()
            kept = Counter(thing for thing, held in alive if held.is_alive)
            places = {(thing, held.place) for thing, held in alive if held.is_alive}
            spread = Counter(thing for thing, _ in places)
            grown = [thing for thing in kept if kept[thing] == CALLS == spread[thing]]
            if not grown and kept:
                continue
            every = grown or [thing for thing, _ in alive]
            thing = next((one for one in every if isinstance(one, Output)), every[0])
            yield _finding(subject, thing, Leak(with_backward, is_slow=not grown))
            return
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Leak:
    """How a call leaks: whether its backward ran, and whether the collector frees it at last."""

    with_backward: bool
    is_slow: bool


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor, and the memory that it lies in, without holding them."""

    place: int
    tensor: Callable[[], Any]
    memory: Any

    @classmethod
    def of(cls, tensor: Tensor) -> Held:
        """That of a tensor; of a subclass, which may have no memory of its own, itself alone."""
        if tensor.layout != torch.strided or type(tensor) not in PLAIN:
            return cls(id(tensor), weakref.ref(tensor), None)
        memory = tensor.untyped_storage()
        return cls(memory.data_ptr(), weakref.ref(tensor), StorageWeakRef(memory))

    @property
    def is_alive(self) -> bool:
        """Whether one of them is still there."""
        is_held = self.memory is not None and not self.memory.expired()
        return is_held or self.tensor() is not None


def _alive_after(subject: Subject, with_backward: bool) -> list[tuple[Kept, Held]]:
    """What of some calls, all made before any is dropped, is still alive after that."""
    references: list[tuple[Kept, Held]] = []
    runs: list[Run] = []
    try:
        for _ in range(CALLS):
            runs.append(subject.run())
            if with_backward:
                runs[-1].pull(subject.cotangents(runs[-1]))
            references += _references(runs[-1])
    except BackwardFailedError:
        return []
    finally:
        runs.clear()
    return [(thing, held) for thing, held in references if held.is_alive]


def _references(run: Run) -> list[tuple[Kept, Held]]:
    """Weak references to what went into and came out of one call."""
    named: list[tuple[Kept, Any]] = [
        (Input(name), arg) for name, arg in zip(run.names, run.passed, strict=False)
    ]
    named += [(Output(i), output) for i, output in enumerate(run.outputs)]
    return [(thing, Held.of(tensor)) for thing, value in named for tensor in tensors_in(value)]


def _finding(subject: Subject, thing: Kept, leak: Leak) -> Finding:
    words = "with backward" if leak.with_backward else "whose backward never ran"
    fix = "keep nothing of a call on the class, in a global or in a closure"
    if leak.is_slow:
        fix = "keep outputs with ctx.save_for_backward, never on a ctx attribute"
    elif subject.target.is_op:  # no collector looks into C++: an output on its own node stays
        fix = "keep outputs with save_for_backward, not in saved_data, and none in a global"
    held = "it is freed by the garbage collector only"
    return subject.finding(
        RULE,
        example=subject.base,
        at=At(thing, rest=f", after a call {words} whose results were dropped"),
        expected="freed at once",
        got=held if leak.is_slow else "it is still held after a collection",
        detail=leak,
        fix=fix,
    )


def _held(context: ReproContext) -> str:
    """What a call made must be gone when nobody holds it."""
    leak = context.about.detail
    what = context.code_of(context.about.thing)
    backward = [context.pull()] if leak.with_backward else []
    body = [*context.settings(), *context.weights(), *context.done(), *backward]
    return text_of(
        "import gc",
        "import weakref",
        "",
        "def left():",
        indented([*body, f"return weakref.ref({what})"]),
        "",
        ["gc.disable()"] if leak.is_slow else [],
        "refs = [left() for _ in range(3)]",
        [] if leak.is_slow else ["gc.collect()"],
        'assert refs[-1]() is None, "it is held after the call"',
    )


REPROS = (_held,)
