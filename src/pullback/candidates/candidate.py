"""What happens in the process of a candidate: it is loaded, called, timed and watched.

What this process says of itself (that inputs were changed, that functions were replaced) names what
a candidate does; a hostile one could keep it from being said. What decides does not rest on it: the
numbers are compared in another process, at inputs that came just before, by a clock outside.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback.candidates.calling import Called, call_once, forward, reactions
from pullback.candidates.host import Talk
from pullback.candidates.sections import Caller, Section, Wait
from pullback.candidates.sources import Source, fingerprint, memory_of_tensors
from pullback.candidates.tampering import (
    changed_settings,
    known_functions,
    replaced_names,
    torch_settings,
)
from pullback.candidates.trials import Trial, TrialMaker
from pullback.candidates.written import in_memory, why_lazy, why_other, written_copy
from pullback.check.watching.dispatch import poisoned
from pullback.errors import type_and_line
from pullback.judge.example import exact_copy, tensors_in

PLAIN = (Tensor, torch.nn.Parameter)
GLANCE, PATIENCE = 0.01, 0.3  # seconds that results may take to change after a call


def serve(talk: Talk) -> None:
    """Do what is asked for, until nobody asks."""
    here = Here()
    verbs = (
        "load",
        "call",
        "again",
        "reacts",
        "prepare",
        "go",
        "arrange",
        "row",
        "give",
        "now",
        "tampered",
    )
    talk.serve({verb: getattr(here, verb) for verb in verbs})


class Here:
    """The candidate of this process, and what is known of it."""

    def __init__(self) -> None:
        self._known = known_functions()
        self._settings = torch_settings()
        self._sleep, self._clock = time.sleep, time.monotonic
        self._section = Section()
        self._row: list[Called] = []
        self._threads = 0
        self._like: list[Tensor | None] = []

    def load(self, source: Source, examples: str) -> dict[str, Any]:
        """Load the examples, then the candidate."""
        self.maker = TrialMaker(torch.load(Path(examples), weights_only=False))
        self._is_gpu = any(
            t.is_cuda for example in self.maker.examples for t in tensors_in(example.args)
        )
        self._wait: Wait = torch.cuda.synchronize if self._is_gpu else _nothing
        self._callers = {
            gradients: Caller(self.maker, gradients=gradients) for gradients in (False, True)
        }
        target = source.target()
        self.target, self.apply = target, target.call
        count = len(self.maker.examples[0].args)
        names = target.names_of(count)
        self._threads = _threads()
        kept: list[int] = []  # the numbers of tensors that may be written to
        number = 0
        for name, arg in zip(names, self.maker.examples[0].args, strict=True):
            inside = len(tensors_in(arg))
            kept += range(number, number + inside) if target.intent.is_donated(name) else ()
            number += inside
        return {"donated": kept, "is_function": target.is_function}

    # ---- calls that are not timed ----

    def call(
        self, trial: Trial, path: str, gradients: bool, poison: bool, watched: Sequence[str]
    ) -> dict[str, Any]:
        """One call, its results in a file, and what it did beside."""
        example = self.maker.made(trial)
        if example is None:
            return {"refused": "no such example"}
        seen: set[str] = set()
        copies = [exact_copy(t) for t in tensors_in(example.args)]
        try:
            with _watching(seen if watched else None):
                called = self._called(example, trial.draw, gradients, poison)
        except Exception as error:
            return {"refused": type_and_line(error)[:300]}
        there = [t for t in called.tensors if t is not None]
        lazy = next(filter(None, map(why_lazy, there)), "")
        early = [None if t is None else written_copy(t) for t in called.tensors]
        self._settle()
        late = [None if t is None else written_copy(t) for t in called.tensors]
        lazy = lazy or next(filter(None, map(why_other, there)), "")
        given = tensors_in(called.args)
        changed = [i for i, (a, b) in enumerate(zip(given, copies, strict=True)) if not _same(a, b)]
        _save(late, path)
        if trial.is_ordinary and not poison:
            self._like = late
            for caller in self._callers.values():
                caller.remember(called)
        return {
            "lazy": lazy,
            "unfinished": not all(map(_same, early, late)),
            "changed": changed,
            "has_gradient": any(output.requires_grad for output in called.outputs),
            "same_code": bool(seen & set(watched)),
        }

    def _called(self, example: Any, draw: int, gradients: bool, poison: bool) -> Called:
        if self._is_gpu:
            _keep_busy()
        if not poison:
            return call_once(self.apply, example, draw, gradients=gradients)
        with poisoned():
            return call_once(self.apply, example, draw, gradients=gradients)

    def again(self, first: Trial, second: Trial, how: str, paths: Sequence[str]) -> dict[str, Any]:
        """Two forward calls, the second at other numbers in the same place.

        By "identity", these are the same tensors, changed; by "address", others in their memory;
        by "shape", others elsewhere.
        """
        one, two = self.maker.made(first), self.maker.made(second)
        if one is None or two is None:
            return {"refused": "no such example"}
        args = one.fresh(needs=frozenset())
        new = two.fresh(needs=frozenset())
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                before = forward(self.apply, args)
                _save(map(in_memory, before.outputs), paths[0])
                if how != "shape":
                    for old, other in zip(tensors_in(args), tensors_in(new), strict=True):
                        old.copy_(other)
                    new = args if how == "identity" else _renamed(args)
                after = forward(self.apply, new)
                self._settle()
                _save(map(in_memory, after.outputs), paths[1])
        except Exception as error:
            return {"refused": type(error).__name__}
        return {}

    def reacts(self, trial: Trial, side: int) -> dict[str, Any]:
        """By argument: whether the outputs change with one half of it."""
        return {"reacts": reactions(self.apply, self.maker, trial, side)}

    def _settle(self) -> None:
        """Let work end that goes on after a call; threads that stay are waited for once."""
        self._wait()
        self._sleep(GLANCE)
        latest = self._clock() + PATIENCE
        while _threads() > self._threads and self._clock() < latest:
            self._sleep(GLANCE)
        self._threads = max(self._threads, _threads())
        self._wait()

    # ---- calls that are timed ----

    def prepare(self, mode: str, trials: Sequence[Trial], gradients: bool) -> dict[str, Any]:
        """Make the arguments of a section."""
        self._caller = self._callers[gradients]
        self._caller.prepare(mode, trials)
        return {}

    def go(self, cold: bool) -> dict[str, Any]:
        """Make the calls of a section: how long each took, and what changed afterwards."""
        self._section = section = self._caller.run(self.apply, cold=cold, like=self._like)
        self._settle()
        late, memory = 0, []
        for called, kept in zip(section.called, section.kept, strict=True):
            late += not all(map(_same, called.tensors, kept))
            memory.append(memory_of_tensors(t for t in called.tensors if _has_memory(t)))
        reused = sum(bool(a & b) for i, a in enumerate(memory) for b in memory[:i])
        late, reused = (0, late) if reused else (late, 0)
        section.called.clear()
        return {
            "times": section.times,
            "tails": section.tails,
            "unfinished": late,
            "reused": reused,
        }

    def arrange(self) -> dict[str, Any]:
        """Get ready to make the calls of a section in a row."""
        self._caller.arrange(self.apply)
        return {}

    def row(self) -> dict[str, Any]:
        """Make the calls of a section with nothing between them."""
        self._row = self._caller.run_in_a_row()
        return {"calls": len(self._row)}

    def give(self, numbers: Sequence[int], paths: Sequence[str]) -> dict[str, Any]:
        """The results of some timed calls, as they were when the clock was stopped."""
        self._row = []
        for number, path in zip(numbers, paths, strict=True):
            _save(self._section.kept[number], path)
        return {}

    def now(self) -> dict[str, Any]:
        """What the clocks say that calls are timed by."""
        return {"now": [caller.now() for caller in self._callers.values()]}

    def tampered(self) -> dict[str, Any]:
        """What the candidate has replaced and changed."""
        return {
            "replaced": replaced_names(self._known),
            "settings": changed_settings(self._settings),
        }


def _nothing() -> None:
    return


def _keep_busy() -> None:
    """Give the GPU some milliseconds of work.

    All that the call launches is then there before any of it runs: work on another stream, for
    which the call's own does not wait, cannot be done by chance when its result is copied.
    """
    one = torch.ones(4096, 4096, device="cuda")
    for _ in range(4):
        one = one @ one


# ---- results ----


def _has_memory(tensor: Tensor | None) -> bool:
    return tensor is not None and type(tensor) in PLAIN and tensor.numel() > 0


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors hold the same bits."""
    if one is None or other is None:
        return one is other
    a, b = in_memory(one), in_memory(other)
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _renamed(args: Sequence[Any]) -> tuple[Any, ...]:
    """New tensors in the memory of the old ones."""
    made = []
    for arg in args:
        if isinstance(arg, Tensor):
            new = torch.empty(0, dtype=arg.dtype, device=arg.device)
            arg = new.set_(arg.untyped_storage(), arg.storage_offset(), arg.size(), arg.stride())
        made.append(arg)
    return tuple(made)


def _save(tensors: Iterable[Tensor | None], path: str) -> None:
    torch.save(list(tensors), Path(path))


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


class _watching:
    """Notes the code that runs inside, where it is asked to."""

    def __init__(self, seen: set[str] | None) -> None:
        self._seen = seen

    def __enter__(self) -> None:
        if self._seen is not None:
            sys.setprofile(self._note)

    def __exit__(self, *_: object) -> None:
        if self._seen is not None:
            sys.setprofile(None)

    def _note(self, frame: Any, event: str, arg: Any) -> None:
        if event == "call" and self._seen is not None:
            self._seen.add(fingerprint(frame.f_code))
