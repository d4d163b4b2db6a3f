"""Recording: the real inputs of the Functions that a program calls, kept to check them with.

    with pb.recording() as rec:
        train_one_step()
    print(rec.check())

What is seen are the outermost calls of `apply` in the thread that records: not those inside another
Function's forward, in other threads, or in compiled code. Functions of PyTorch itself and of this
library are left out. What is kept is small: a few calls of each class that differ in shapes,
dtypes, layouts or plain arguments, with detached copies of their tensors, up to a limit in bytes.

A saved recording holds tensors and plain values, is loaded with `weights_only=True`, and names the
classes (`module:Name`): loading one runs no code.
"""

from __future__ import annotations

import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback.capture.patch import watching
from pullback.check.groups import GroupOf, by_ranks, with_group, without_group
from pullback.check.naming import load as load_target
from pullback.check.report import Report, Reports
from pullback.check.target import Target, target_of
from pullback.errors import PullbackError, RecordingError
from pullback.function.slots import transforms_active
from pullback.judge.example import copy_of, mapped, tensors_in, words_of

SCHEMA = "pullback.recording/1"
KINDS = 3  # calls of one class that are kept
BYTES = 64 << 20  # of one recording
FOREIGN = ("torch.", "pullback.")
GROUP = "pullback.group"  # the ranks of a process group, in a saved recording

PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the Function by name, its arguments, and which of them required grad.

    `function` is the class itself; None in a recording that was loaded. `rank` is the rank that
    made the call, where several did.
    """

    target: str
    args: tuple[Any, ...]
    needs: frozenset[int]
    file: str = ""
    function: Any = field(default=None, compare=False, repr=False)
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
        args = tuple(by_ranks(mapped(arg, lambda t: copy_of(t))) for arg in self.args)
        for i in self.needs:
            args[i].requires_grad_()
        return args

    @property
    def size(self) -> int:
        """How many bytes the tensors have."""
        return sum(t.untyped_storage().nbytes() for t in tensors_in(self.args))

    def __str__(self) -> str:
        return f"{self.target}({', '.join(words_of(arg) for arg in self.args)})"


class Recording:
    """The calls that were seen, and what was left out and why."""

    def __init__(self, *, kinds: int = KINDS, limit: int = BYTES) -> None:
        self.calls: list[Call] = []
        self.seen: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.ranks = 1
        self._kinds = kinds
        self._limit = limit
        self._known: dict[Any, set[Any]] = {}
        self._size = 0

    # ---- while it runs ----

    @contextmanager
    def watching(self) -> Iterator[Recording]:
        """Record what this thread calls in this block; several blocks add up."""
        with watching(self._handle):
            yield self

    def _handle(
        self, cls: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not f"{cls.__module__}.".startswith(FOREIGN):
            try:
                self._take(cls, args, kwargs)
            except Exception as error:  # the program under record must not notice
                self.left_out[f"{name_of(cls)}: {type(error).__name__}"] += 1
        return call(*args, **kwargs)

    def _take(self, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = name_of(cls)
        self.seen[name] += 1
        known = self._known.setdefault(cls, set())
        if len(known) >= self._kinds:
            return
        args = _positional(cls, args, kwargs)
        tensors = tensors_in(args)
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
        kept = tuple(without_group(mapped(arg, lambda t: copy_of(t, seen))) for arg in args)
        self.calls.append(Call(name, kept, frozenset(needs), _file_of(cls), cls))

    # ---- afterwards ----

    def take(self, other: Recording, rank: int) -> None:
        """Add the calls of another recording, as those of a rank."""
        self.calls += [replace(call, rank=rank) for call in other.calls]
        self.seen += other.seen
        self.left_out += other.left_out

    @property
    def targets(self) -> dict[str, list[Call]]:
        """The calls of each Function, by its name."""
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.target, []).append(call)
        return found

    @property
    def names(self) -> list[str]:
        """The names by which the Functions can be loaded: `module:Name`, or `file.py:Name`."""
        return list(dict.fromkeys(_found(call.target, call.file) for call in self.calls))

    def inputs_of(self, target: Target) -> list[tuple[Any, ...]]:
        """The recorded inputs of a Function: that of the same name, in the same module or file."""
        if not target.is_function:
            return []
        cls = target.function
        return [call.inputs for call in self._calls_of(cls) if call.rank == 0]

    def ranked_inputs_of(self, target: Target) -> Any:
        """The recorded inputs of all ranks; None where one of them has none."""
        from pullback.check.ranks.parts import tuples_of  # it asks for recordings

        return tuples_of(self._calls_of(target.function), self.ranks)

    def _calls_of(self, cls: Any) -> list[Call]:
        return [
            call
            for call in self.calls
            if call.target == name_of(cls)
            or (call.target.partition(":")[2] == cls.__qualname__ and _is_file(cls, call.file))
        ]

    def check(self, **options: Any) -> Reports:
        """Check every Function with the inputs it was called with; options as for `pb.check`."""
        from pullback.check.runner import check  # it imports every rule

        reports: list[Report] = []
        errors: list[str] = []
        for name, calls in self.targets.items():
            try:
                target = target_of(calls[0].function or load_target(_found(name, calls[0].file)))
                if self.ranks > 1:
                    reports += self._across(target, calls, options)
                    continue
                reports.append(check(target, [call.inputs for call in calls], **options))
            except PullbackError as error:
                errors.append(str(error))
        return Reports(tuple(reports), tuple(errors))

    def _across(self, target: Target, calls: list[Call], options: dict[str, Any]) -> list[Report]:
        """The report across ranks; of a Function that makes no collective, that of one process."""
        from pullback.check.ranks.parts import tuples_of  # it asks for recordings
        from pullback.check.runner import check  # it imports every rule

        inputs = tuples_of(calls, self.ranks)
        if inputs is not None:
            report = check(target, inputs, ranks=self.ranks, **options)
            if report.tried.get("collectives") or not report.ok:
                return [report]
        return [check(target, [call.inputs for call in calls if call.rank == 0], **options)]

    def save(self, path: str | Path) -> None:
        """Write the calls whose arguments are tensors and plain values."""
        calls = [
            {
                "target": call.target,
                "file": call.file,
                "args": _mapped_groups(call.args),
                "needs": sorted(call.needs),
                "rank": call.rank,
            }
            for call in self.calls
            if _is_savable(_mapped_groups(call.args))
        ]
        torch.save({"schema": SCHEMA, "calls": calls, "ranks": self.ranks}, path)

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
            needs = frozenset(int(i) for i in call["needs"])
            args, file = tuple(_groups_in(arg) for arg in call["args"]), str(call["file"])
            rank = int(call.get("rank", 0))
            recorded.calls.append(Call(str(call["target"]), args, needs, file, rank=rank))
            recorded.seen[str(call["target"])] += 1
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


def name_of(cls: Any) -> str:
    """`module:Name` of a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _file_of(cls: Any) -> str:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return str(Path(file).resolve()) if file else ""


def _is_file(cls: Any, file: str) -> bool:
    own = _file_of(cls)
    return bool(file and own) and Path(file).resolve() == Path(own).resolve()


def _found(name: str, file: str) -> str:
    """The name by which a recorded class can be loaded: the program itself by its file."""
    module, _, qualname = name.partition(":")
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


def _mapped_groups(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with the ranks of process groups in their places."""
    return tuple({GROUP: list(a.ranks)} if isinstance(a, GroupOf) else a for a in args)


def _groups_in(arg: Any) -> Any:
    """A group by its ranks, where that is what was saved."""
    return GroupOf(tuple(arg[GROUP])) if isinstance(arg, dict) and set(arg) == {GROUP} else arg


def _is_savable(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(_is_savable(item) for item in value)
    if type(value) is dict:
        return all(isinstance(key, str) and _is_savable(item) for key, item in value.items())
    return isinstance(value, (Tensor, *PLAIN))
