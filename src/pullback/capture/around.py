"""What a program reads from around it, as it is now: has anything changed since it was captured?

A capture holds the decisions and the numbers that the program took from its surroundings: closures,
globals, defaults, attributes of objects and classes, a module's `eval`. `state_around` writes them
down as one value, which is another one as soon as a name is bound to something else, a list grows
or an attribute changes.

Tensors count by what they are and not by their values: a capture reads those when it runs. How far
it looks has limits (`_DEPTH`, `_LIMIT`), and what a library keeps to itself is not seen: whether
all was is said, too. A look costs as much as several ops; whether it would see the same again is
asked faster (`steady_state`).
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pullback.capture.places import is_users_file
from pullback.capture.steady import Places

_DEPTH, _LIMIT, _LENGTH = 5, 500, 200
_BYTES = 1 << 16  # of an array of another library, which counts by its values
_PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_ROWS = (list, tuple, set, frozenset, deque)
_TENSORS = ("_parameters", "_buffers")  # of a module
_FIXED = (torch.layout, torch.memory_format, type(Ellipsis), type(NotImplemented), slice, range)
# Libraries that keep nothing to themselves that a result could depend on.
_PURE = {"torch", "pullback", "math", "cmath", "operator", "functools", "itertools", "collections"}
_PURE |= {"builtins", "typing", "types", "enum", "abc", "dataclasses", "contextlib", "numbers"}
_CALLED = (
    "forward",
    "setup_context",
    "__call__",
)  # attributes that a call reads without naming them


@dataclass(frozen=True, slots=True)
class State:
    """What a program reads from around it, as a value to compare with a later one.

    `tensors` are those among it; `is_whole` says that nothing else could change it.
    """

    entries: tuple[Any, ...]
    tensors: tuple[Any, ...] = field(compare=False)
    is_whole: bool = field(compare=False)


def state_around(program: Any) -> State:
    """What `program` reads from around it now."""
    return _Look(program).state()


def steady_state(program: Any) -> tuple[State, Callable[[], bool]]:
    """What `program` reads from around it now, and a way to ask whether that is still so.

    Where the answer is no, only another look can tell.
    """
    look = _Look(program)
    return look.state(), look.places.question()


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A module whose parameters and buffers are given to the program: they are not around it."""

    module: nn.Module


class _Same:
    """An object that counts by its identity, and is kept alive so that this stays its own."""

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)


class _Look:
    """One look around, nearest things first."""

    def __init__(self, program: Any) -> None:
        self.seen: set[int] = set()
        self.left = deque([(program, _DEPTH)])
        self.tensors: list[Any] = []
        self.places = Places()
        self.is_whole = True
        self.names = set(_CALLED)  # that the code which was met mentions
        # Classes and modules of the user, and which of their attributes were met.
        self.classes: dict[type | ModuleType, set[str]] = {}

    def state(self) -> State:
        """What is found."""
        entries = tuple(self._entries())
        return State(entries, tuple(self.tensors), self.is_whole)

    def _entries(self) -> Iterator[Any]:
        for _ in range(_LIMIT):
            if not self.left:
                yield from self._of_classes()
            if not self.left:
                return
            yield from self._entry(*self.left.popleft())
        self.is_whole = False

    def _entry(self, value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, (float, complex)):
            yield type(value), repr(value)  # 0.0 and -0.0 are equal, and not the same
        elif isinstance(value, bytearray):
            self.places.is_told = False  # changed in place, it is still the same thing
            yield bytearray, bytes(value)
        elif isinstance(value, _PLAIN):
            yield type(value), value
        elif isinstance(value, Tensor):
            self.tensors.append(_kind_of(value))
            self.places.tensor(value)
            yield self.tensors[-1]
            yield from self._of_attributes(value, depth)
        elif isinstance(value, MethodType):  # made anew whenever it is read
            self._add(depth + 1, value.__self__, value.__func__)
        elif id(value) in self.seen:
            yield _Same(value)
        elif depth == 0:
            self.is_whole = False
            yield _Same(value)
        else:
            self.seen.add(id(value))
            yield from self._inside(value, depth)

    def _add(self, depth: int, *values: Any) -> None:
        self.left.extend((value, depth - 1) for value in values)

    def _inside(self, value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, FunctionType):
            yield _Same(value.__code__)
            self._add_function(value, depth)
            if is_users_file(value.__code__.co_filename):
                yield from self._of_attributes(value, depth)
        elif isinstance(value, functools.partial):
            self._add(depth + 1, value.func, value.args, value.keywords)
        elif isinstance(value, nn.Module):
            yield from self._of_module(value, depth)
        elif isinstance(value, Given):
            yield from self._of_module(value.module, depth, has_tensors=False)
        elif isinstance(value, _ROWS):
            yield type(value), len(value)
            self.places.row(value)
            self._add(depth, *list(value)[:_LENGTH])
            self.is_whole &= len(value) <= _LENGTH
            yield from self._of_attributes(value, depth)
        elif isinstance(value, dict):
            yield from self._of_dict(value, depth)
            yield from self._of_attributes(value, depth)
        elif isinstance(value, (type, ModuleType)):
            yield _Same(value)
            self._note(value)
        else:
            yield from self._of_object(value, depth)

    def _of_dict(self, value: Any, depth: int) -> Iterator[Any]:
        items = list(value.items())[:_LENGTH]
        self.places.items(value, _LENGTH)
        yield tuple(map(_key_of, (key for key, _ in items)))
        self._add(depth, *(item for _, item in items))
        self.is_whole &= len(value) <= _LENGTH

    def _of_attributes(self, value: Any, depth: int) -> Iterator[Any]:
        """The attributes that somebody gave a thing which usually has none."""
        if getattr(value, "__dict__", None):
            yield from self._of_dict(vars(value), depth)
        elif hasattr(value, "__dict__"):
            self.places.size(vars(value))

    def _of_object(self, value: Any, depth: int) -> Iterator[Any]:
        kind = type(value)
        yield _Same(value)
        if isinstance(value, BuiltinFunctionType):
            self._add(depth, *([] if value.__self__ is None else [value.__self__]))
        elif isinstance(value, (staticmethod, classmethod)):
            self._add(depth + 1, value.__func__)
        elif isinstance(value, property):
            self._add(depth + 1, value.fget)
        elif isinstance(value, functools.cached_property):
            self._add(depth + 1, value.func)
        elif _values_of(value) is not None:
            self.places.is_told = False  # changed in place, it is still the same thing
            yield _values_of(value)
        else:
            self.places.attribute(value, "__class__")
            yield from self._of_dict(getattr(value, "__dict__", {}), depth)
            for name in _slots_of(kind):
                self.places.attribute(value, name)
                self._add(depth, getattr(value, name, None))
            self._note(kind)
            self.is_whole &= isinstance(value, _FIXED) or all(
                _is_text(_module_of(base)) for base in kind.__mro__[:-1]
            )

    def _of_module(
        self, module: nn.Module, depth: int, *, has_tensors: bool = True
    ) -> Iterator[Any]:
        """A module, and those inside it however deep; `has_tensors`, whether theirs count, too."""
        for each in module.modules():
            self.seen.add(id(each))
            self._note(type(each))
            yield _Same(each)
            self.places.attribute(each, "__class__")
            self.places.size(vars(each))
            for name, value in list(vars(each).items()):
                if name.startswith("__"):
                    continue  # what a library (FSDP) notes down for itself
                self.places.item(vars(each), name)
                if name in _TENSORS and not has_tensors:
                    self.places.size(value)
                    yield tuple(value)
                    continue
                if name in (*_TENSORS, "_modules"):
                    self.places.items(value)
                if name in _TENSORS:
                    for key, tensor in value.items():
                        yield key
                        yield from self._entry(tensor, depth)
                elif name != "_modules" and (isinstance(value, Tensor) or value):
                    yield name
                    self._add(depth, value)
                elif isinstance(value, Sized):
                    self.places.size(value)
                elif name != "_modules":
                    yield name
                    yield from self._entry(value, depth)

    def _note(self, value: type | ModuleType) -> None:
        """Remember a class of the user's; of other libraries, only some are known to be pure."""
        if isinstance(value, type):
            for base in value.__mro__:
                if _is_users(_module_of(base)):
                    self.classes.setdefault(base, set())
            self.places.attribute(value, "__mro__")
            name, module = value.__module__, _module_of(value)
        else:
            name, module = value.__name__, value
            if _is_users(value):
                self.classes.setdefault(value, set())
        self.is_whole &= name.split(".")[0] in _PURE or _is_users(module)

    def _of_classes(self) -> Iterator[Any]:
        """The attributes of the user's classes and modules that the code mentions."""
        for cls, met in list(self.classes.items()):
            found = [n for n in vars(cls) if n in self.names and n not in met]
            met.update(found)
            self.places.size(vars(cls))
            for name in found:
                self.places.item(vars(cls), name)
                yield name
                self._add(_DEPTH, vars(cls)[name])

    def _add_function(self, function: FunctionType, depth: int) -> None:
        wrapped = inspect.unwrap(function)
        for name in ("__code__", "__wrapped__", "__defaults__", "__kwdefaults__"):
            self.places.attribute(function, name)
        if wrapped is not function:
            self._add(depth + 1, wrapped)
        if not is_users_file(function.__code__.co_filename):
            library = str(function.__globals__.get("__name__")).split(".")[0]
            self.is_whole &= library in _PURE
            if library == "pullback":  # around something of the user's
                self._add_variables(function, depth + 1)
            return
        self._add(depth, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self.places.items(function.__kwdefaults__ or {})
        self._add_variables(function, depth)
        names = _names_in(function.__code__)
        self.names.update(names)
        for name in names:
            value = _named(name, function.__globals__)
            if name in function.__globals__ or name in _globals_in(function.__code__):
                self.places.item(function.__globals__, name)
            if name in sys.modules and value is sys.modules[name]:
                self.places.item(sys.modules, name)
            self._add(depth, value)
            if isinstance(value, ModuleType) and _is_users(value):
                for inner in names:
                    self.places.item(vars(value), inner)
                self._add(depth, *map(vars(value).get, names))

    def _add_variables(self, function: FunctionType, depth: int) -> None:
        """The variables of enclosing functions."""
        for cell in function.__closure__ or ():
            self.places.cell(cell)
            self._add(depth, _contents(cell))


# ---- names ----


@functools.lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> tuple[str, ...]:
    """The names that `code` mentions, those of the functions in it included."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return tuple(dict.fromkeys((*code.co_names, *(n for c in inner for n in _names_in(c)))))


@functools.lru_cache(maxsize=4096)
def _globals_in(code: CodeType) -> frozenset[str]:
    """The names that `code` reads as globals, those of the functions in it included."""
    read = {
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return frozenset(read).union(*map(_globals_in, inner))


def _named(name: str, space: dict[str, Any]) -> Any:
    """What a name means: a global, or a module that is imported on the spot; None for others."""
    if name in space or hasattr(builtins, name):
        return space.get(name)
    return sys.modules.get(name)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


# ---- objects ----


def _is_users(module: Any) -> bool:
    """Whether the user wrote a module."""
    return _is_text(module) and is_users_file(getattr(module, "__file__", None) or "")


def _is_text(module: Any) -> bool:
    """Whether a module is written in Python; one that is not known by its name is."""
    if module is None or module.__name__ == "__main__":
        return True
    return str(getattr(module, "__file__", None)).endswith(".py")


def _module_of(cls: type) -> Any:
    return sys.modules.get(cls.__module__)


def _slots_of(kind: type) -> list[str]:
    """The attributes of an object that are not in its `__dict__`."""
    rows = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for row in rows for name in ((row,) if isinstance(row, str) else row)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _values_of(value: Any) -> bytes | None:
    """The values of a small array of another library; None for other things."""
    try:
        if not isinstance(getattr(value, "nbytes", None), int) or value.nbytes > _BYTES:
            return None
        make = getattr(value, "tobytes", None)
        return None if make is None else bytes(make())
    except Exception:  # an object that answers for its attributes itself may raise anything
        return None


def _key_of(key: Any) -> Any:
    """A key of a dict, as far as it is plain."""
    if isinstance(key, tuple):
        return tuple(map(_key_of, key))
    return (type(key), repr(key)) if isinstance(key, (*_PLAIN, float, complex)) else type(key)


def _kind_of(tensor: Tensor) -> tuple[Any, ...]:
    """What a tensor is; not its values, and nothing that would keep it alive."""
    if tensor.layout is not torch.strided:
        return id(tensor), tensor.dtype, tensor.device, tensor.requires_grad
    kind = (tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad)
    return (id(tensor), *kind)
