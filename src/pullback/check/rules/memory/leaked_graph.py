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

from pullback.check.example import tensors_in
from pullback.check.run import Run
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)

RULE = Rule(
    code="B853", name="leaked-graph", group="memory", severity=Severity.FRAGILE, profile="quick"
)

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
            words = "with backward" if with_backward else "whose backward never ran"
            if not alive:
                continue
            gc.collect()
            kept = Counter(name for name, held in alive if held.is_alive)
            places = {(name, held.place) for name, held in alive if held.is_alive}
            spread = Counter(name for name, _ in places)
            grown = [name for name in kept if kept[name] == CALLS == spread[name]]
            if grown:
                name = next((n for n in grown if n.startswith("output")), grown[0])
                yield _finding(subject, name, words, "it is still held after a collection", 2)
            elif not kept:
                name = next((n for n, _ in alive if n.startswith("output")), alive[0][0])
                yield _finding(subject, name, words, "it is freed by the garbage collector only", 1)
            else:
                continue
            return
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


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


def _alive_after(subject: Subject, with_backward: bool) -> list[tuple[str, Held]]:
    """What of some calls, all made before any is dropped, is still alive after that."""
    references: list[tuple[str, Held]] = []
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
    return [(name, held) for name, held in references if held.is_alive]


def _references(run: Run) -> list[tuple[str, Held]]:
    """Weak references to what went into and came out of one call."""
    named = [(f"input `{name}`", arg) for name, arg in zip(run.names, run.passed, strict=False)]
    named += [(f"output {i}", output) for i, output in enumerate(run.outputs)]
    return [(name, Held.of(tensor)) for name, value in named for tensor in tensors_in(value)]


def _finding(subject: Subject, name: str, words: str, got: str, times: int) -> Finding:
    fixes = {
        1: "keep outputs with ctx.save_for_backward, never on a ctx attribute",
        2: "keep nothing of a call on the class, in a global or in a closure",
    }
    if subject.target.is_op:  # no collector looks into C++: an output on its own node stays
        fixes[2] = "keep outputs with save_for_backward, not in saved_data, and none in a global"
    return subject.finding(
        RULE,
        example=subject.base,
        at=f"{name}, after a call {words} whose results were dropped",
        expected="freed at once",
        got=got,
        fix=fixes[times],
    )
