"""What a program reads: what names mean, who wrote a thing, and values to compare."""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import sys
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor

from pullback.capture.places import is_installed, is_users_file
from pullback.function.generated import codes_in

_NUMBERS = (float, complex, bool, int)
ATOMS = (*_NUMBERS, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
# Libraries that keep nothing to themselves that a result could depend on.
PURE = {"torch", "pullback", "math", "cmath", "operator", "functools", "itertools", "collections"}
PURE |= {"builtins", "typing", "types", "enum", "abc", "dataclasses", "contextlib", "numbers"}


# ---- names ----


@functools.lru_cache(maxsize=4096)
def names_in(code: CodeType) -> tuple[str, ...]:
    """The names that `code` mentions, those of the functions in it included."""
    return tuple(dict.fromkeys(name for each in codes_in(code) for name in each.co_names))


@functools.lru_cache(maxsize=4096)
def globals_in(code: CodeType) -> frozenset[str]:
    """The names that `code` reads as globals, those of the functions in it included."""
    steps = (step for each in codes_in(code) for step in dis.get_instructions(each))
    return frozenset(s.argval for s in steps if s.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def meaning_of(name: str, space: dict[str, Any]) -> Any:
    """What a name means: a global, or a module that is imported on the spot; None for others."""
    if name in space or hasattr(builtins, name):
        return space.get(name)
    return sys.modules.get(name)


def contents(cell: Any) -> Any:
    """What a variable of an enclosing function holds."""
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


# ---- objects ----


def is_users_module(module: Any) -> bool:
    """Whether the user wrote a module."""
    return is_text(module) and is_users_file(getattr(module, "__file__", None) or "")


def is_elsewhere(module: str, file: str, home: str) -> bool:
    """Whether a file belongs to an installed package other than `home`."""
    return is_installed(file) and module.split(".")[0] != home


def home_of(program: Any) -> str:
    """The package that a program is written in."""
    return str(getattr(program, "__module__", None) or "").split(".")[0]


def is_pure(module: ModuleType) -> bool:
    """Whether a module is of a library that keeps nothing to itself."""
    return module.__name__.split(".")[0] in PURE


def is_text(module: Any) -> bool:
    """Whether a module is written in Python; one that is not known by its name is."""
    if module is None or module.__name__ == "__main__":
        return True
    return str(getattr(module, "__file__", None)).endswith(".py")


def class_module(cls: type) -> Any:
    """The module of a class."""
    return sys.modules.get(cls.__module__)


def slot_names(kind: type) -> list[str]:
    """The attributes of an object that are not in its `__dict__`."""
    rows = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for row in rows for name in ((row,) if isinstance(row, str) else row)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def array_bytes(value: Any) -> int | None:
    """How large an array of another library is; None for other things."""
    try:
        size = getattr(value, "nbytes", None)
        return size if isinstance(size, int) and callable(value.tobytes) else None
    except Exception:  # an object that answers for its attributes itself may raise anything
        return None


def buffer_of(value: Any) -> memoryview | None:
    """The memory that an object of C shows (`array`, `ctypes`); None for other things."""
    try:
        return memoryview(value)
    except (TypeError, ValueError, BufferError):
        return None


def array_digest(value: Any) -> tuple[Any, bytes]:
    """The shape of an array, and its values as a digest."""
    return getattr(value, "shape", None), hashlib.sha256(value.tobytes()).digest()


# ---- values ----


class Same:
    """An object that counts by its identity, and is kept alive so that this stays its own."""

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)


def atom(value: Any) -> tuple[type, Any]:
    """A plain value, such that what is equal is also the same to a program."""
    # 0.0 and -0.0 are equal, and not the same.
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


def dict_key(key: Any) -> Any:
    """A key of a dict."""
    if isinstance(key, tuple):
        return tuple(map(dict_key, key))
    if isinstance(key, ATOMS):
        return type(key), repr(key)
    return id(key) if isinstance(key, Tensor) else Same(key)


def tensor_kind(tensor: Tensor) -> tuple[Any, ...]:
    """What a tensor is; not its values, and nothing that would keep it alive."""
    if tensor.layout is not torch.strided:
        return id(tensor), tensor.dtype, tensor.device, tensor.requires_grad
    kind = (tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad)
    return (id(tensor), *kind)
