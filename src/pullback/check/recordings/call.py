"""One call of a Function or custom op as a recording has it: its name, arguments and where it was.

The name is `module:Name` (or `torch.ops.space.op`), by which the Function is found again. The
arguments of a call that was loaded from a file are descriptions (see `stored`): they are built, and
what they name is imported, when the Function is checked.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.check.recordings.stored import (
    GroupOf,
    built_arguments,
    by_ranks,
    described_arguments,
    is_tied,
    with_group,
)
from pullback.check.target.naming import already_loaded, path_of
from pullback.check.target.naming import load as load_target
from pullback.check.target.registration import body_of, schema_of
from pullback.check.target.target import OPS
from pullback.errors import RecordingError
from pullback.judge.example import (
    Tie,
    describe_value,
    exact_copy,
    mapped,
    owned_tensors,
    tensors_in,
)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call: the Function or op by name, its arguments, and which of them required grad.

    `function` is the class or op itself; None in a recording that was loaded, whose arguments are
    descriptions that `inputs` builds anew. `ties` are arguments that are parameters of a module
    among them. `rank` is the rank that made the call, where several did; `path` is where
    in a module it was made.
    """

    target: str
    args: tuple[Any, ...]
    needs: frozenset[int]
    file: str = ""
    function: Any = field(default=None, compare=False, repr=False)
    ties: tuple[Tie, ...] = ()
    rank: int = 0
    path: str = ""

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
        return load_target(name_to_load(path, self.file))

    def stored(self) -> dict[str, Any]:
        """What is written of it; raises `CannotStoreError`."""
        args = self.args
        if self.function is not None:
            args = described_arguments(args, self.ties, self.target)
        needs = sorted(self.needs)
        whole = {"target": self.target, "file": self.file, "args": args, "needs": needs}
        return {**whole, "rank": self.rank, "path": self.path}

    @property
    def size(self) -> int:
        """How many bytes its tensors have."""
        return sum(t.untyped_storage().nbytes() for t in tensors_in(self.args))

    def __str__(self) -> str:
        return f"{self.target}({', '.join(describe_value(arg) for arg in self.args)})"


def read_call(call: dict[str, Any]) -> RecordedCall:
    """A call as it stands in a file; raises `ValueError` where it cannot be one."""
    args = tuple(call["args"])
    needs = frozenset(int(i) for i in call["needs"])
    for i in needs:
        if not (0 <= i < len(args) and (isinstance(args[i], Tensor) or is_tied(args[i]))):
            raise ValueError(f"argument {i} requires grad, and is no tensor")
    rank, path = int(call.get("rank", 0)), str(call.get("path", ""))
    return RecordedCall(str(call["target"]), args, needs, str(call["file"]), rank=rank, path=path)


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
        return path_of(function)
    body = path_of(body_of(function))
    if is_op(already_loaded(body)):
        return body
    return f"torch.ops.{schema_of(function).name.replace('::', '.')}"


def file_of(function: Any) -> str:
    """The file in which a Function, or the Python body of an op, is defined; empty if unknown."""
    owner = body_of(function) if is_op(function) else function
    file = getattr(sys.modules.get(getattr(owner, "__module__", "")), "__file__", None)
    return str(Path(file).resolve()) if file else ""


def name_to_load(name: str, file: str) -> str:
    """The name by which a recorded class can be loaded: the program itself by its file."""
    module, _, qualname = name.partition(":")
    if not qualname:
        return name  # torch.ops.space.op
    return f"{file}:{qualname}" if module == "__main__" and file else f"{module}:{qualname}"
