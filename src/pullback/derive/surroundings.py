"""What a function reads from around it: may a capture of it be used again?

A capture holds the numbers that a function read from globals and closures when it was captured.
`surroundings_of` lists those readings, so that they can be looked at before the capture is used
again; and it gives None for a function that reads what can change unseen (an object, a list).
"""

from __future__ import annotations

import builtins
import dis
import enum
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

_VALUES = (bool, int, float, complex, str, bytes, type(None), enum.Enum)
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Tensor)
_MODULES = ("torch", "math", "cmath", "operator")
_CHANGING = ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_NAME", "LOAD_FROM_DICT_OR_DEREF")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Readings from around a function, each with the value that it gave."""

    readings: tuple[tuple[Callable[[], Any], Any], ...]
    dtype: torch.dtype

    def hold(self) -> bool:
        """Whether every reading still gives the same object."""
        if torch.get_default_dtype() is not self.dtype:
            return False
        return all(read() is value for read, value in self.readings)


class _Open(Exception):
    """Something is read that can change unseen."""


def surroundings_of(*functions: Any) -> Surroundings | None:
    """All that `functions`, and the functions they call, read from around them; None if unknown."""
    readings: list[tuple[Callable[[], Any], Any]] = []
    seen: set[int] = set()
    pending = list(functions)
    try:
        while pending:
            function = pending.pop()
            if id(function) in seen:
                continue
            seen.add(id(function))
            found = list(_readings(function))
            readings += found
            pending += [value for _, value in found if isinstance(value, types.FunctionType)]
    except (_Open, ValueError):  # a cell that is still empty
        return None
    return Surroundings(tuple(readings), torch.get_default_dtype())


def _readings(function: Any) -> Iterator[tuple[Callable[[], Any], Any]]:
    if not isinstance(function, types.FunctionType):
        raise _Open
    values = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    for value in values:
        yield _fixed(value), _closed(value)
    for cell in function.__closure__ or ():
        yield _cell(cell), _closed(cell.cell_contents)
    for name in _global_names(function.__code__):
        read = _global(function.__globals__, name)
        yield read, _closed(read())


def _global_names(code: types.CodeType) -> set[str]:
    names: set[str] = set()
    for step in dis.get_instructions(code):
        if step.opname in _CHANGING:
            raise _Open
        if step.opname == "LOAD_GLOBAL":
            names.add(step.argval)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _global_names(const)
    return names


def _closed(value: Any) -> Any:
    """`value`, if nothing inside it can change unseen; a function's own readings come later."""
    if isinstance(value, (*_VALUES, *_OF_TORCH, types.FunctionType, types.BuiltinFunctionType)):
        return value
    if isinstance(value, types.ModuleType) and value.__name__.split(".")[0] in _MODULES:
        return value
    if isinstance(value, (tuple, frozenset)):
        for item in value:
            if isinstance(item, types.FunctionType):
                raise _Open
            _closed(item)
        return value
    if isinstance(value, type) and value.__module__.split(".")[0] in (*_MODULES, "builtins"):
        return value
    raise _Open


def _fixed(value: Any) -> Callable[[], Any]:
    return lambda: value


def _cell(cell: types.CellType) -> Callable[[], Any]:
    return lambda: cell.cell_contents


def _global(space: dict[str, Any], name: str) -> Callable[[], Any]:
    return lambda: space[name] if name in space else getattr(builtins, name, None)
