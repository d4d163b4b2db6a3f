"""Recording: the real inputs of the Functions that a program calls, kept to check them with.

    with pb.recording() as rec:
        train_one_step()
    print(rec.check())

What is seen are the outermost calls of `apply`, and of custom ops with an input that requires grad,
in the thread that records: not those inside another Function's forward, in other threads, or in
compiled code. Functions and ops of PyTorch itself and of this library are left out. What is kept is
small: a few calls of each that differ in shapes, dtypes, layouts or plain arguments, with detached
copies of their tensors, up to a limit in bytes.

A saved recording holds tensors, plain values and descriptions of other arguments (see `stored`), is
loaded with `weights_only=True`, and names the classes and ops (`module:Name`): loading one runs no
code, and checking one imports Functions and ops, and refuses anything else that it names.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.capture.patch import watching
from pullback.check.groups import GroupOf, by_ranks, with_group, without_group
from pullback.check.naming import load as load_target
from pullback.check.registration import body_of, schema_of
from pullback.check.report import Report, Reports
from pullback.check.stored import (
    PLAIN,
    CannotStoreError,
    built_arguments,
    described_arguments,
    is_tied,
)
from pullback.check.target import OPS, Target, target_of
from pullback.errors import PullbackError, RecordingError
from pullback.function.slots import transforms_active
from pullback.judge.example import (
    Tie,
    describe_value,
    exact_copy,
    mapped,
    owned_tensors,
    tensors_in,
    ties_of,
)

SCHEMA = "pullback.recording/2"
KINDS = 3  # calls of one class that are kept
BYTES = 64 << 20  # of one recording
FOREIGN = ("torch.", "pullback.")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call: the Function or op by name, its arguments, and which of them required grad.

    `function` is the class or op itself; None in a recording that was loaded, whose arguments are
    descriptions that `inputs` builds anew. `ties` are arguments that are parameters of a module
    among them. `rank` is the rank that made the call, where several did.
    """

    target: str
    args: tuple[Any, ...]
    needs: frozenset[int]
    file: str = ""
    function: Any = field(default=None, compare=False, repr=False)
    ties: tuple[Tie, ...] = ()
    rank: int = 0

    @property
    def inputs(self) -> tuple[Any, ...]:
        """The arguments to call with again, requiring grad where they did."""
        groups = [with_group(arg) for arg in self.args]
        return tuple(
            group if isinstance(arg, GroupOf) else arg
            for arg, group in zip(self.portable, groups, strict=True)
        )

    @property
    def portable(self) -> tuple[Any, ...]:
        """The same with process groups by their ranks, for other processes."""
        if self.function is None:
            args = list(built_arguments(self.args, self.target, self._load))
        else:
            args = [by_ranks(mapped(arg, lambda t: exact_copy(t))) for arg in self.args]
            for tie in self.ties:
                args[tie.position] = owned_tensors(self.args[tie.module])[tie.name]
        for i in self.needs:
            args[i].requires_grad_()
        return tuple(args)

    def _load(self, path: str) -> Any:
        return load_target(_found(path, self.file))

    def stored(self) -> dict[str, Any]:
        """What is written of it; raises `CannotStoreError`."""
        args = self.args
        if self.function is not None:
            args = described_arguments(args, self.ties, self.target)
        needs = sorted(self.needs)
        whole = {"target": self.target, "file": self.file, "args": args, "needs": needs}
        return {**whole, "rank": self.rank}

    @property
    def size(self) -> int:
        """How many bytes its tensors have."""
        return sum(t.untyped_storage().nbytes() for t in tensors_in(self.args))

    def __str__(self) -> str:
        return f"{self.target}({', '.join(describe_value(arg) for arg in self.args)})"


@dataclass(frozen=True, slots=True)
class Saved:
    """What a file holds of a recording, and which calls it does not hold and why."""

    calls: int = 0
    functions: int = 0
    lost: tuple[str, ...] = ()


class Recording:
    """The calls that were seen, and what was left out and why."""

    def __init__(self, *, kinds: int = KINDS, limit: int = BYTES) -> None:
        self.calls: list[RecordedCall] = []
        self.seen: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.ranks = 1
        self._kinds = kinds
        self._limit = limit
        self.on_call: Callable[[], None] | None = None  # called when a call was kept
        self._known: dict[Any, tuple[str, set[Any]]] = {}
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
            self._known[function] = function_name(function), set()
        name, known = self._known[function]
        if len(known) >= self._kinds:
            self.seen[name] += 1
            return
        args = _positional(function, args, kwargs)
        tensors = tensors_in(args)
        if is_op(function) and not any(t.requires_grad for t in tensors):
            return
        self.seen[name] += 1
        if transforms_active() or any(not _is_plain(t) for t in tensors):
            self.left_out[f"{name}: called under a transform, or with tensor subclasses"] += 1
            return
        key = _kind(args)
        if key in known:
            return
        size = sum(t.untyped_storage().nbytes() for t in tensors)
        if self._size + size > self._limit:
            self.left_out[f"{name}: {size} bytes more than the limit of {self._limit}"] += 1
            return
        known.add(key)
        self._size += size
        needs = [i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.requires_grad]
        seen: dict[int, Tensor] = {}
        kept = tuple(without_group(mapped(arg, lambda t: exact_copy(t, seen))) for arg in args)
        ties = tuple(ties_of(args))
        file = _file_of(function)
        self.calls.append(RecordedCall(name, kept, frozenset(needs), file, function, ties))
        if self.on_call is not None:
            self.on_call()

    # ---- afterwards ----

    def take(self, other: Recording, rank: int) -> None:
        """Add the calls of another recording, as those of a rank."""
        self.calls += [replace(call, rank=rank) for call in other.calls]
        self.seen += other.seen
        self.left_out += other.left_out

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
        return list(dict.fromkeys(_found(call.target, call.file) for call in self.calls))

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
        name, file = function_name(own), _file_of(own)
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
        return target_of(call.function or load_function(_found(name, call.file)))

    def check(
        self,
        *,
        seconds: float | None = None,
        on_report: Callable[[Report], None] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
        **options: Any,
    ) -> Reports:
        """Check every Function with the inputs it was called with; options as for `pb.check`.

        Arguments:
            seconds: how long all of it may take; what was not begun by then is named in `errors`,
                and the rules that were not tried in the report of the last one.
            on_report: called with each report as soon as it is there.
            progress: called with the name of each rule, its number and how many there are.
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
                limit = None if seconds is None else time_left
                options = {**options, "seconds": limit, "progress": progress}
                if self.ranks > 1:
                    report = self._across(target, calls, options)
                else:
                    report = check(target, [call.inputs for call in calls], **options)
            except PullbackError as error:
                errors.append(str(error))
                continue
            reports.append(report)
            if on_report is not None:
                on_report(report)
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
        stored, lost = [], []
        for call in self.calls:
            try:
                stored.append(call.stored())
            except CannotStoreError as why:
                lost.append(f"{call}: {why}")
        if stored or even_empty:
            _write(Path(path), {"schema": SCHEMA, "calls": stored, "ranks": self.ranks})
        return Saved(len(stored), len({one["target"] for one in stored}), tuple(lost))

    def __str__(self) -> str:
        lines = [f"{len(self.calls)} calls of {len(self.targets)} Functions"]
        lines += [f"  {call}" for call in self.calls]
        lines += [f"  left out, {count} times: {why}" for why, count in self.left_out.items()]
        return "\n".join(lines)


@contextmanager
def recording(*, kinds: int = KINDS, limit: int = BYTES) -> Iterator[Recording]:
    """Record the Functions that this thread calls in the block.

    Arguments:
        kinds: how many calls of one class to keep, of different shapes, dtypes or plain arguments.
        limit: how many bytes of tensors to keep in all.
    """
    recorded = Recording(kinds=kinds, limit=limit)
    with recorded.watching():
        yield recorded


def load_recording(path: str | Path) -> Recording:
    """A recording that was saved; runs no code of it, and none of the Functions it names."""
    try:
        whole = torch.load(path, weights_only=True, map_location="cpu")
        if whole["schema"] != SCHEMA:
            raise ValueError(f"schema {whole['schema']!r}")
        recorded = Recording()
        recorded.ranks = int(whole.get("ranks", 1))
        for call in whole["calls"]:
            recorded.calls.append(read_call(call))
            recorded.seen[recorded.calls[-1].target] += 1
    except Exception as error:
        raise RecordingError(
            f"`{path}` must be a recording",
            expected=f"a file that `Recording.save` wrote ({SCHEMA})",
            got=_wrong_with(path, error),
            fix="make one: pullback record -- python train.py",
        ) from None
    return recorded


# ---- parts ----


def _wrong_with(path: str | Path, error: Exception) -> str:
    """Why a file is no recording; what PyTorch says of a file that is not its own only misleads."""
    if not zipfile.is_zipfile(path):
        return "a file that PyTorch did not write"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def read_call(call: dict[str, Any]) -> RecordedCall:
    """A call as it stands in a file; raises `ValueError` where it cannot be one."""
    args = tuple(call["args"])
    needs = frozenset(int(i) for i in call["needs"])
    for i in needs:
        if not (0 <= i < len(args) and (isinstance(args[i], Tensor) or is_tied(args[i]))):
            raise ValueError(f"argument {i} requires grad, and is no tensor")
    rank = int(call.get("rank", 0))
    return RecordedCall(str(call["target"]), args, needs, str(call["file"]), rank=rank)


def _write(path: Path, whole: dict[str, Any]) -> None:
    """Write a file in one step: whoever reads it finds all of it, or what was there before."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(whole, file)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load_function(name: str) -> Any:
    """The Function or op that a recording names; raises for anything else, and calls nothing."""
    thing = load_target(name)
    if is_op(thing) or (isinstance(thing, type) and issubclass(thing, TorchFunction)):
        return thing
    raise RecordingError(
        f"`{name}`, which the recording names, must be a Function or a custom op",
        expected="a subclass of torch.autograd.Function, or an op of the dispatcher",
        got=type(thing).__name__,
        fix="record the program again",
    )


def is_op(function: Any) -> bool:
    """Whether it is an op of the dispatcher, not a Function."""
    return type(function).__name__ in OPS


def function_name(function: Any) -> str:
    """`module:Name` of a Function, or of an op made in Python; `torch.ops.space.op` of another."""
    if not is_op(function):
        return f"{function.__module__}:{function.__qualname__}"
    body = body_of(function)
    found: Any = sys.modules.get(getattr(body, "__module__", ""))
    for part in getattr(body, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    if is_op(found):
        return f"{body.__module__}:{body.__qualname__}"
    return f"torch.ops.{schema_of(function).name.replace('::', '.')}"


def _is_users(function: Any) -> bool:
    """Whether it is neither PyTorch's nor ours; of ops only others are announced."""
    return is_op(function) or not f"{function.__module__}.".startswith(FOREIGN)


def _file_of(function: Any) -> str:
    owner = body_of(function) if is_op(function) else function
    file = getattr(sys.modules.get(getattr(owner, "__module__", "")), "__file__", None)
    return str(Path(file).resolve()) if file else ""


def _found(name: str, file: str) -> str:
    """The name by which a recorded class can be loaded: the program itself by its file."""
    module, _, qualname = name.partition(":")
    if not qualname:
        return name  # torch.ops.space.op
    return f"{file}:{qualname}" if module == "__main__" and file else f"{module}:{qualname}"


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
