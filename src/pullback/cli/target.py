"""Targets on the command line: `module:name`, and the arguments to call them with."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from pullback.errors import TargetError


def load(target: str) -> Any:
    """The object that `target` names: `module:name`, `package.module:name` or `file.py:name`."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise TargetError(
            f"`{target}` must name a module and an object in it",
            expected="module:name, or file.py:name",
            got=repr(target),
        )
    module = _module(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [n for n in vars(module) if not n.startswith("_")]
            raise TargetError(
                f"`{where}` must have `{name}`",
                got=f"names such as {', '.join(sorted(public)[:8])}",
            )
        found = getattr(found, part)
    return found


def _module(where: str) -> ModuleType:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise TargetError(f"`{where}` must be a file", got="no such file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise TargetError(f"`{where}` must be a Python file", got="a file that is none")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.parent.resolve()))
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise TargetError(
            f"`{where}` must be a module that Python finds from here",
            got=str(error),
            fix="run from the folder that holds it, or name a file: path/to/file.py:name",
        ) from None


def examples_of(target: Any, name: str, expressions: tuple[str, ...]) -> tuple[Any, ...]:
    """The arguments to try `target` with: from `--example`, else from its `examples`."""
    if expressions:
        return tuple(_value(expression) for expression in expressions)
    given = getattr(target, "examples", None)
    given = given() if callable(given) else given
    if given is None:
        raise TargetError(
            f"`{name}` must come with examples of its arguments",
            expected="one --example for each argument, or an attribute `examples`",
            got="neither",
            fix="""add --example "torch.randn(3, requires_grad=True)" """.strip(),
        )
    return tuple(given)


def _value(expression: str) -> Any:
    try:
        return eval(expression, {"torch": torch})
    except Exception as error:
        raise TargetError(
            "`--example` must be a Python expression, with `torch` at hand",
            got=f"{expression!r}: {error}",
        ) from None
