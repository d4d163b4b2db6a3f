"""The targets of `pullback check`: by name, in files, of a recording, the settings or a diff.

A function without parameters that gives a module, or the class of a module that can be made without
arguments, stands for that module.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.autograd.function import Function as TorchFunction

from pullback.check.recordings.call import is_op
from pullback.check.recordings.recorded import Recording
from pullback.check.target.naming import OPS, load, module_of, ops_of
from pullback.check.target.registration import body_of
from pullback.check.target.target import Target, target_of
from pullback.cli.changed import changed_files, is_touched
from pullback.cli.identity import identity_of
from pullback.cli.options import functions_files, targets_of
from pullback.cli.results import Found
from pullback.cli.settings import Settings
from pullback.errors import PullbackError, RecordingError, TargetError, first_line
from pullback.report.outcome import Failure

REQUIRED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def named_targets(
    settings: Settings, recording: str | None, recorded: Recording | None, changed: str | None
) -> tuple[str, ...]:
    """The targets where the command line names none: of a recording, the settings, or a diff."""
    if recorded is not None:
        return _recorded(recording, recorded)
    if settings.targets:
        return targets_of(settings)
    return tuple(functions_files(settings, changed_files(changed or "")))


def chosen_targets(
    names: Sequence[str],
    recorded: Recording | None,
    settings: Settings,
    changed: str | None,
    errors: list[Failure],
) -> list[Found]:
    """The targets to check; what cannot be found goes to `errors`.

    Those of a recording are what it names, if these are Functions or ops. What the settings exclude
    is left out, unless it is named.
    """
    pairs = _found(names, errors) if recorded is None else _of(recorded, errors)
    known = [(identity_of(name, target, settings.root), target) for name, target in pairs]
    found = [one for one in known if one[0].name in names or not settings.excludes(one[0].names)]
    if changed is None:
        return found
    touched = changed_files(changed)
    return [one for one in found if is_touched(one[0], touched)]


def _recorded(path: str | None, recorded: Recording | None) -> tuple[str, ...]:
    """The Functions of a recording, by their names."""
    names = tuple(recorded.names if recorded else ())
    if not names:
        raise RecordingError(
            f"`{path}` must hold the calls of a Function",
            got="none",
            fix="record a program that calls one: pullback record -- python train.py",
        )
    return names


def _of(recorded: Recording, errors: list[Failure]) -> Iterator[tuple[str, Target]]:
    """The Functions and ops of a recording; what is neither goes to `errors`."""
    for name in recorded.targets:
        try:
            yield name, recorded.target_called(name)
        except PullbackError as error:
            errors.append((name, error))


def load_library(library: str) -> None:
    """Load a library of ops, or raise `TargetError` with what the system says of it."""
    try:
        torch.ops.load_library(library)
    except (OSError, RuntimeError) as error:  # not to be loaded, or an op registered twice
        raise TargetError(
            f"`{library}` must be a library that PyTorch can load",
            expected="a shared library that was built for this version of PyTorch",
            got=first_line(error.__cause__ or error),
        ) from None


def _found(targets: Sequence[str], errors: list[Failure]) -> Iterator[tuple[str, Target]]:
    """Each target with its name; what cannot be found goes to `errors`."""
    for name in targets:
        try:
            yield from _of_name(name)
        except PullbackError as error:
            errors.append((name, error))


def _of_name(name: str) -> Iterator[tuple[str, Target]]:
    space = name.removeprefix(OPS)
    if name.startswith(OPS) and "." not in space and ops_of(space):
        for op in ops_of(space):
            yield f"{name}.{op}", target_of(load(f"{name}.{op}"))
        return
    is_one = name.startswith(OPS) or (":" in name and not Path(name).exists())
    if is_one:
        yield name, target_of(model_of(load(name), name))
        return
    module = module_of(name)
    functions = list(functions_in(module))
    if not functions:
        raise TargetError(
            f"`{name}` must define a Function to check",
            expected="a subclass of torch.autograd.Function, or a custom op, at its top",
            got="none",
            fix=f"name what to check: {name}:name",
        )
    for function in functions:
        target = target_of(function)
        yield f"{name}:{function.__name__ if target.is_function else target.name}", target


def functions_in(module: ModuleType) -> Iterator[Any]:
    """The Function classes and custom ops that a module defines, in the order of its lines."""
    ops = set[str]()
    for value in list(vars(module).values()):
        if is_op(value) and getattr(body_of(value), "__module__", "") == module.__name__:
            if target_of(value).name not in ops:  # one op may have two names
                yield value
            ops.add(target_of(value).name)
        if not (isinstance(value, type) and issubclass(value, TorchFunction)):
            continue
        if value.__module__ == module.__name__ and target_of(value).method("forward") is not None:
            yield value


def model_of(thing: Any, name: str) -> Any:
    """The module that a factory gives, made from the same random numbers each time; else `thing`.

    Raises `TargetError` where making it raises, or where it is no module.
    """
    is_class = isinstance(thing, type) and issubclass(thing, nn.Module)
    if not (is_class or inspect.isfunction(thing)):
        return thing
    signature = inspect.signature(thing)
    is_open = any(
        p.default is p.empty and p.kind in REQUIRED for p in signature.parameters.values()
    )
    returned = signature.return_annotation
    is_said = isinstance(returned, type) and issubclass(returned, nn.Module)
    if is_open or not (is_class or is_said or not signature.parameters):
        return thing
    torch.manual_seed(0)
    try:
        made = thing()
    except Exception as error:
        raise TargetError(
            f"`{name}` must give a module when it is called without arguments",
            got=f"{type(error).__name__}: {error}",
        ) from None
    if isinstance(made, nn.Module):
        return made
    raise TargetError(
        f"`{name}`, which takes no inputs, must give a module to check",
        expected="a torch.nn.Module",
        got=type(made).__name__,
        fix="name a function of tensors, a Function class, or a function that makes a module",
    )
