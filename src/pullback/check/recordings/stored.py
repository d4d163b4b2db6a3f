"""Arguments as plain data that a file can hold, and how they are built again.

A recording is loaded with `weights_only=True`: it holds tensors and plain values, and loading it
runs no code. What else Functions are called with is written as a description:

- a module by the import path of its class, its parameters and buffers, and its other attributes;
- a function, or a member of an enumeration, by its import path;
- a process group by its ranks;
- an argument that is a parameter of another argument, by its name there.

`built_arguments` makes them again when the Function is checked. It imports classes and functions of
the package that the Function itself is from, and of `torch`, and nothing else: a file from
elsewhere cannot name code of another package to be called.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pullback.check.target.naming import already_loaded, path_of
from pullback.errors import PullbackError, RecordingError
from pullback.judge.example import Tie, owned_tensors

KEY = "pullback"
"""Marks the dictionaries that describe something."""

PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
OWN = frozenset(vars(torch.nn.Module()))
"""The attributes that every module has, and that `nn.Module` itself makes."""

HOOKS = tuple(name for name in OWN if name.endswith("_hooks"))


class CannotStoreError(Exception):
    """An argument cannot be written; the text says what it is."""


def described_arguments(args: Sequence[Any], ties: Sequence[Tie], target: str) -> tuple[Any, ...]:
    """The arguments of `target` as a file holds them; raises `CannotStoreError`."""
    describe = _Description(target)
    tied = {tie.position: tie for tie in ties}
    return tuple(_tied(tied[i]) if i in tied else describe(arg) for i, arg in enumerate(args))


def built_arguments(
    args: Sequence[Any], target: str, load: Callable[[str], Any]
) -> tuple[Any, ...]:
    """What was described, made again for `target`; `load` finds what an import path stands for."""
    build = _Building(target, load)
    made = [build(arg) for arg in args]
    for place, arg in enumerate(args):
        if is_tied(arg):
            made[place] = _parameter_of(made, arg, target)
    return tuple(made)


def is_tied(value: Any) -> bool:
    """Whether a description is that of a parameter of another argument."""
    return _kind(value) == "tied"


# ---- process groups ----


@dataclass(frozen=True, slots=True)
class GroupOf:
    """A process group, by its ranks; `group` is the group itself where it was seen."""

    ranks: tuple[int, ...]
    group: Any = field(default=None, compare=False, repr=False)


def without_group(arg: Any) -> Any:
    """A process group by its ranks, as long as it is there; any other argument as it is."""
    if not dist.is_available() or not isinstance(arg, dist.ProcessGroup):
        return arg
    return GroupOf(tuple(dist.get_process_group_ranks(arg)), arg)


def with_group(arg: Any) -> Any:
    """The group that was seen, in the place of its ranks; any other argument as it is."""
    return arg.group if isinstance(arg, GroupOf) else arg


def by_ranks(arg: Any) -> Any:
    """A group without what cannot leave the process; any other argument as it is."""
    return GroupOf(arg.ranks) if isinstance(arg, GroupOf) else arg


# ---- writing ----


@dataclass(frozen=True, slots=True)
class _Description:
    """Describes arguments of one Function by tensors, plain values and import paths."""

    target: str

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.detach()
        if isinstance(value, enum.Enum):
            return {KEY: "enum", "name": self.path_of(type(value)), "member": value.name}
        if type(value) in PLAIN:
            return value
        if type(value) in (list, tuple, torch.Size):
            items = [self(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if type(value) is dict:
            return {KEY: "dict", "items": [(self(k), self(v)) for k, v in value.items()]}
        if isinstance(value, GroupOf):
            return {KEY: "group", "ranks": list(value.ranks)}
        if isinstance(value, torch.nn.Module):
            return self.module(value)
        if is_callable(value):
            return {KEY: "callable", "name": self.path_of(value)}
        raise CannotStoreError(f"an argument is a `{type(value).__qualname__}`")

    def module(self, module: torch.nn.Module) -> dict[str, Any]:
        """A module by its class, tensors and attributes."""
        if any(getattr(module, hooks, None) for hooks in HOOKS):
            raise CannotStoreError(f"a module of class `{type(module).__qualname__}` has hooks")
        own = {name: value for name, value in vars(module).items() if name not in OWN}
        return {
            KEY: "module",
            "name": self.path_of(type(module)),
            "parameters": {
                name: None if one is None else (one.detach(), one.requires_grad)
                for name, one in module._parameters.items()
            },
            "buffers": dict(module._buffers),
            "modules": {
                name: None if one is None else self.module(one)
                for name, one in module._modules.items()
            },
            "attributes": {name: self(value) for name, value in own.items()},
            "training": module.training,
        }

    def path_of(self, thing: Any) -> str:
        """`module:Name` of a class or function; raises for one that is not found again by it."""
        path = path_of(thing)
        if not path or already_loaded(path) is not thing:
            name = getattr(thing, "__qualname__", type(thing).__qualname__)
            raise CannotStoreError(f"`{name}` cannot be imported by its name")
        if not _is_known(path, self.target):
            raise CannotStoreError(f"`{path}` is of another package than the Function")
        return path


def _tied(tie: Tie) -> dict[str, Any]:
    return {KEY: "tied", "module": tie.module, "name": tie.name}


def _is_known(path: str, target: str) -> bool:
    """Whether an import path leads into the package of the Function, or into torch."""
    return _root(path) in (_root(target), "torch")


def _root(path: str) -> str:
    return path.partition(":")[0].partition(".")[0]


# ---- building ----


def _kind(value: Any) -> str:
    return str(value.get(KEY, "")) if isinstance(value, dict) else ""


@dataclass(frozen=True, slots=True)
class _Building:
    """Makes arguments of their descriptions, for one Function."""

    target: str
    load: Callable[[str], Any]

    def __call__(self, value: Any) -> Any:
        kind = _kind(value)
        if isinstance(value, list | tuple):
            return type(value)(self(item) for item in value)
        if not isinstance(value, dict) or is_tied(value):
            return value
        try:
            if kind == "dict":
                return {self(key): self(item) for key, item in value["items"]}
            if kind == "group":
                return GroupOf(tuple(int(rank) for rank in value["ranks"]))
            if kind == "module":
                return self.module(value)
            if kind == "enum":
                return self.found(value["name"], is_enum)[value["member"]]
            if kind == "callable":
                return self.found(value["name"], is_callable)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordingError(
                f"the recorded arguments of `{self.target}` must be those that were written",
                got=f"{kind}: {type(error).__name__}: {error}",
                fix="record the program again",
            ) from None
        raise RecordingError(
            f"the recorded arguments of `{self.target}` must be of known kinds",
            expected="dict, group, module, enum, callable or tied",
            got=repr(kind),
        )

    def module(self, value: dict[str, Any]) -> torch.nn.Module:
        """A module with the state that it had."""
        cls = self.found(value["name"], is_module)
        made: torch.nn.Module = cls.__new__(cls)
        torch.nn.Module.__init__(made)
        for name, one in value["attributes"].items():
            setattr(made, name, self(one))
        for name, one in value["parameters"].items():
            made.register_parameter(
                name, None if one is None else torch.nn.Parameter(one[0], requires_grad=one[1])
            )
        for name, one in value["buffers"].items():
            made.register_buffer(name, one)
        for name, one in value["modules"].items():
            made.add_module(name, None if one is None else self.module(one))
        made.training = bool(value["training"])
        return made

    def found(self, path: str, is_right: Callable[[Any], bool]) -> Any:
        """What an import path stands for, if it is from the Function's own package or torch's."""
        if not _is_known(path, self.target):
            raise RecordingError(
                f"`{path}`, which `{self.target}` was recorded with, must be of its own package",
                expected=f"something in `{_root(self.target)}` or in `torch`",
                got=f"something in `{_root(path)}`",
                fix="write a factory of the inputs, and pass that to pb.check",
            )
        try:
            thing = self.load(path)
        except PullbackError as error:
            raise RecordingError(
                f"`{path}`, which `{self.target}` was recorded with, must be found", got=error.rule
            ) from None
        if not is_right(thing):
            raise RecordingError(
                f"`{path}`, which `{self.target}` was recorded with, must be what it was",
                got=type(thing).__name__,
            )
        return thing


def is_module(thing: Any) -> bool:
    """Whether it is a class of modules."""
    return isinstance(thing, type) and issubclass(thing, torch.nn.Module)


def is_enum(thing: Any) -> bool:
    """Whether it is an enumeration."""
    return isinstance(thing, type) and issubclass(thing, enum.Enum)


def is_callable(thing: Any) -> bool:
    """Whether it is a function or a class."""
    return isinstance(thing, FunctionType | BuiltinFunctionType | type)


def _parameter_of(args: Sequence[Any], value: dict[str, Any], target: str) -> Tensor:
    """The parameter or buffer of one of the arguments that another argument is."""
    place, name = value.get("module"), value.get("name")
    owner = args[place] if isinstance(place, int) and 0 <= place < len(args) else None
    owned = owned_tensors(owner)
    if name in owned:
        return owned[name]
    raise RecordingError(
        f"the recorded arguments of `{target}` must be those that were written",
        got=f"no `{name}` in argument {place}",
        fix="record the program again",
    )
