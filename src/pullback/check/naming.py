"""Targets by name: `module:name`, `file.py:name`, `torch.ops.namespace.op`."""

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

OPS = "torch.ops."


def load(target: str) -> Any:
    """The object that `target` names: `module:name`, `file.py:name` or `torch.ops.space.op`."""
    if target.startswith(OPS):
        return _op(target)
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise TargetError(
            f"`{target}` must name a module and an object in it",
            expected="module:name, or file.py:name",
            got=repr(target),
        )
    module = module_of(where)
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


def module_of(where: str) -> ModuleType:
    """The module that `where` names, be it by its file."""
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


def _op(target: str) -> Any:
    """The op of the dispatcher that `torch.ops.space.op` or `torch.ops.space.op.overload` names."""
    found: Any = torch.ops
    for part in target.removeprefix(OPS).split("."):
        try:
            found = getattr(found, part)
        except (AttributeError, RuntimeError):
            raise TargetError(
                f"`{target}` must be an op that is registered",
                expected="torch.ops.namespace.name, or with .overload after it",
                got=f"no `{part}`",
                fix="load the library that registers it first (--load lib.so)",
            ) from None
    return found
