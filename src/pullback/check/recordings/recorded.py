"""Recording: the real inputs of the Functions that a program calls, kept to check them with.

    with pb.recording() as rec:
        train_one_step()
    print(rec.check())

What is seen are the outermost calls of `apply`, and of custom ops with an input that requires grad,
in the thread that records: not those inside another Function's forward, in other threads, or in
compiled code. Functions and ops of PyTorch itself and of this library are left out. What is kept is
small: a few calls of each that differ in shapes, dtypes, layouts or plain arguments, with detached
copies of their tensors, up to a limit in bytes.

Each call comes with the places in modules from which the like of it were made, such as
`encoder.layers.3.act`. Files of recordings are those of `recording_file`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback.capture.patch import watching
from pullback.check.findings.report import Report, Reports
from pullback.check.recordings.call import (
    RecordedCall,
    file_of,
    function_name,
    is_op,
    load_function,
    name_to_load,
)
from pullback.check.recordings.file import Saved, read_calls, write_calls
from pullback.check.recordings.module_paths import ModulePaths
from pullback.check.recordings.stored import PLAIN, without_group
from pullback.check.target.target import Target, declared_with, target_of
from pullback.errors import PullbackError
from pullback.function.slots import transforms_active
from pullback.judge.example import exact_copy, mapped, tensors_in, ties_of

KINDS = 3  # calls of one class that are kept
BYTES = 64 << 20  # of one recording
SHOWN = 3  # places that are named
FOREIGN = ("torch.", "pullback.")


class Recording:
    """The calls that were seen, and what was left out and why."""

    def __init__(self, *, kinds: int = KINDS, limit: int = BYTES) -> None:
        self.calls: list[RecordedCall] = []
        self.seen: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.places: dict[str, Counter[str]] = {}  # by name: paths in modules, and how many calls
        self.times: Counter[int] = Counter()  # by number of a call: how many were like it
        self.ranks = 1
        self._kinds = kinds
        self._limit = limit
        self.on_call: Callable[[], None] | None = None  # called when a call was kept
        self._known: dict[Any, tuple[str, dict[Any, int]]] = {}
        self._paths = ModulePaths()
        self._size = 0

    # ---- while it runs ----

    @contextmanager
    def watching(self) -> Iterator[Recording]:
        """Record what this thread calls in this block; several blocks add up."""
        with watching(self._handle, ops=True):
            yield self

    def _handle(
        self, function: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if _is_users(function):
            try:
                self._take(function, args, kwargs)
            except Exception as error:  # the program under record must not notice
                self.left_out[f"{function_name(function)}: {type(error).__name__}"] += 1
        return call(*args, **kwargs)

    def _take(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if function not in self._known:
            self._known[function] = function_name(function), {}
        name, known = self._known[function]
        if len(known) >= self._kinds:
            self._count(name)
            return
        args = _positional(function, args, kwargs)
        tensors = tensors_in(args)
        if is_op(function) and not any(t.requires_grad for t in tensors):
            return
        path = self._count(name)
        if transforms_active() or any(not _is_plain(t) for t in tensors):
            self.left_out[f"{name}: called under a transform, or with tensor subclasses"] += 1
            return
        key = _kind(args)
        if key in known:
            self.times[known[key]] += 1
            return
        size = sum(t.untyped_storage().nbytes() for t in tensors)
        if self._size + size > self._limit:
            self.left_out[f"{name}: {size} bytes more than the limit of {self._limit}"] += 1
            return
        known[key] = len(self.calls)
        self.times[known[key]] += 1
        self._size += size
        needs = [i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.requires_grad]
        seen: dict[int, Tensor] = {}
        kept = tuple(without_group(mapped(arg, lambda t: exact_copy(t, seen))) for arg in args)
        ties = tuple(ties_of(args))
        file = file_of(function)
        self.calls.append(
            RecordedCall(name, kept, frozenset(needs), file, function, ties, path=path)
        )
        if self.on_call is not None:
            self.on_call()

    def _count(self, name: str) -> str:
        """Count a call; where in a module it is made."""
        path = self._paths.here()
        self.seen[name] += 1
        self.places.setdefault(name, Counter())[path] += 1
        return path

    # ---- afterwards ----

    def take(self, other: Recording, rank: int) -> None:
        """Add the calls of another recording, as those of a rank."""
        self.calls += [replace(call, rank=rank) for call in other.calls]
        self.seen += other.seen
        self.left_out += other.left_out
        for name, places in other.places.items():
            self.places[name] = self.places.get(name, Counter()) + places

    @property
    def targets(self) -> dict[str, list[RecordedCall]]:
        """The calls of each Function, by its name."""
        found: dict[str, list[RecordedCall]] = {}
        for call in self.calls:
            found.setdefault(call.target, []).append(call)
        return found

    @property
    def names(self) -> list[str]:
        """The names by which the Functions can be loaded: `module:Name`, or `file.py:Name`."""
        return list(dict.fromkeys(name_to_load(call.target, call.file) for call in self.calls))

    def inputs_of(self, target: Target) -> list[tuple[Any, ...]]:
        """The recorded inputs of a Function: that of the same name, in the same module or file."""
        if not (target.is_function or target.is_op):
            return []
        return [call.inputs for call in self._calls_of(target) if call.rank == 0]

    def ranked_inputs_of(self, target: Target) -> Any:
        """The recorded inputs of all ranks; None where one of them has none."""
        from pullback.check.ranks.parts import tuples_of  # it asks for recordings

        return tuples_of(self._calls_of(target), self.ranks)

    def _calls_of(self, target: Target) -> list[RecordedCall]:
        own = target.function if target.is_function else target.thing
        name, file = function_name(own), file_of(own)
        return [
            call
            for call in self.calls
            if call.target == name
            or (
                call.target.partition(":")[2] == name.partition(":")[2]
                and bool(file and call.file)
                and Path(call.file).resolve() == Path(file).resolve()
            )
        ]

    def target_called(self, name: str) -> Target:
        """The Function or op of that name; raises for what is neither, and never calls it."""
        call = self.targets[name][0]
        return target_of(call.function or load_function(name_to_load(name, call.file)))

    def check(
        self,
        *,
        seconds: float | None = None,
        on_report: Callable[[Report], None] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
        options_of: Callable[[Target], Mapping[str, Any]] | None = None,
        review: Callable[[Target, Report], Report] | None = None,
        **options: Any,
    ) -> Reports:
        """Check every Function with the inputs it was called with; options as for `pb.check`.

        Arguments:
            seconds: how long all of it may take; what was not begun by then is named in `errors`,
                and the rules that were not tried in the report of the last one.
            on_report: called with each report as soon as it is there.
            progress: called with the name of each rule, its number and how many there are.
            options_of: what is chosen for one Function, over the options for all.
            review: makes the report that is shown of the one that was made.
        """
        from pullback.check.runner import check  # it imports every rule

        end = float("inf") if seconds is None else time.monotonic() + seconds
        reports: list[Report] = []
        errors: list[str] = []
        left: list[str] = []
        for name, calls in self.targets.items():
            time_left = end - time.monotonic()
            if time_left <= 0 or (reports and reports[-1].interrupted):
                left.append(name)
                continue
            try:
                target = self.target_called(name)
                own = {**options, **(options_of(target) if options_of is not None else {})}
                limits = [own.pop("seconds", None), None if seconds is None else time_left]
                own["seconds"] = min((one for one in limits if one is not None), default=None)
                own["progress"] = progress
                declares = own.pop("declares", None)
                if self.ranks > 1:
                    report = self._across(target, calls, own)
                else:
                    declared = declared_with(target, declares)
                    report = check(declared, [call.inputs for call in calls], **own)
                report = review(target, report) if review is not None else report
            except PullbackError as error:
                errors.append(str(error))
                continue
            where = called_at(self.places.get(name, {}))
            reports.append(report.with_notes(f"called {where}") if where else report)
            if on_report is not None:
                on_report(reports[-1])
        if left:
            is_cut = bool(reports) and reports[-1].interrupted
            why = "interrupted" if is_cut else f"the time of {seconds:g} s was over"
            errors.append(f"{len(left)} not checked, {why}: {', '.join(left)}")
        return Reports(tuple(reports), tuple(errors))

    def _across(self, target: Target, calls: list[RecordedCall], options: dict[str, Any]) -> Report:
        """The report across ranks; of a Function that makes no collective, that of one process."""
        from pullback.check.ranks.parts import tuples_of  # it asks for recordings
        from pullback.check.runner import check  # it imports every rule

        inputs = tuples_of(calls, self.ranks)
        if inputs is not None:
            report = check(target, inputs, ranks=self.ranks, **options)
            if report.tried.get("collectives") or not report.ok:
                return report
        return check(target, [call.inputs for call in calls if call.rank == 0], **options)

    def save(self, path: str | Path, *, even_empty: bool = False) -> Saved:
        """Write the calls whose arguments can be described: whole, or not at all.

        Says how many these are, and which calls are not in the file and why. Where there is none,
        nothing is written, unless `even_empty`.
        """
        places = {name: dict(counts) for name, counts in self.places.items()}
        return write_calls(path, self.calls, self.ranks, places, even_empty=even_empty)

    def __str__(self) -> str:
        lines = [f"{len(self.calls)} calls of {len(self.targets)} Functions"]
        lines += [f"  {call}" for call in self.calls]
        named = [(name, called_at(places)) for name, places in self.places.items()]
        lines += [f"  {name}: called {where}" for name, where in named if where]
        lines += [f"  left out, {count} times: {why}" for why, count in self.left_out.items()]
        return "\n".join(lines)


def load_recording(path: str | Path) -> Recording:
    """A recording that was saved; runs no code of it, and none of the Functions it names."""
    recorded = Recording()
    recorded.calls, recorded.ranks, places = read_calls(path)
    recorded.places = {name: Counter(counts) for name, counts in places.items()}
    recorded.seen.update(call.target for call in recorded.calls)
    return recorded


def called_at(places: Mapping[str, int]) -> str:
    """In words, the places in modules where a Function was called; empty where there is none."""
    paths = [path for path in places if path]
    if not paths:
        return ""
    shown = ", ".join(f"`{path}`" for path in paths[:SHOWN])
    more = f" and {len(paths) - SHOWN} more places" if len(paths) > SHOWN else ""
    return f"at {shown}{more}"


# ---- parts ----


def _is_users(function: Any) -> bool:
    """Whether it is neither PyTorch's nor ours; of ops only others are announced."""
    return is_op(function) or not f"{function.__module__}.".startswith(FOREIGN)


def _positional(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """All arguments in the order of forward's parameters."""
    if not kwargs:
        return args
    names = target_of(cls).names_of(len(args) + len(kwargs))
    return (*args, *(kwargs[name] for name in names[len(args) :]))


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter)


def _kind(value: Any) -> Any:
    """What two calls have in common that differ in nothing but numbers."""
    if isinstance(value, Tensor):
        shape, strides = tuple(value.shape), tuple(value.stride())
        return shape, strides, value.dtype, str(value.device), value.requires_grad
    if isinstance(value, (list, tuple)):
        return tuple(_kind(item) for item in value)
    if isinstance(value, dict):
        return tuple((repr(key), _kind(item)) for key, item in value.items())
    return repr(value) if isinstance(value, PLAIN) else type(value)
