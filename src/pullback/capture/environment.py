"""The environment of a program: what it reads from outside, and whether that has changed.

A capture holds the decisions and the numbers that the program took from its environment: closures,
globals, defaults, attributes of objects and classes, a module's `eval`. `environment_of` writes
them down as one value, which is another one as soon as a name is bound to something else, a list
grows or an attribute changes.

Tensors count by what they are and not by their values: a capture reads those when it runs. What the
user's own code names is looked at whole, however deep and long it is. Where that cannot be (an
iterator, a file, more than `_LIMIT` things), `State.unseen` says so and the program must not be
captured. Code of installed packages, and attributes that no code names, are looked at as far as
`_DEPTH` and `_FAR_LIMIT` go; what a package in C keeps to itself is not seen. `is_whole` says that
none of this was met.

A walk costs as much as several ops; guards say faster whether it would find the same
(`guarded_state`).
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sized
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pullback.capture.found import (
    ATOMS,
    PURE,
    Same,
    array_bytes,
    array_digest,
    atom,
    buffer_of,
    class_module,
    contents,
    dict_key,
    globals_in,
    home_of,
    is_elsewhere,
    is_pure,
    is_text,
    is_users_module,
    meaning_of,
    names_in,
    slot_names,
    tensor_kind,
)
from pullback.capture.guards import Guards
from pullback.capture.places import is_users_file

_LIMIT = 100_000  # things that the user's code names: some tenths of a second for a walk
_DEPTH, _FAR_LIMIT, _LENGTH = 5, 500, 200  # of the code and attributes that are farther away
_NEAR = 1 << 30  # a depth that never ends
_BYTES = 1 << 24  # of an array of another library, which counts by its values
_ROWS = (list, tuple, set, frozenset, deque)
_TENSORS = ("_parameters", "_buffers")  # of a module
_FIXED = (torch.layout, torch.memory_format, type(Ellipsis), type(NotImplemented), slice, range)
# Attributes that code reads without naming them: by a call, an operator, a conversion.
_OPERATORS = tuple(
    name for name, value in vars(operator).items() if name.startswith("__") and callable(value)
)
_CALLED = (
    *("forward", "setup_context", "__call__", "__getattr__", "__getattribute__", "__get__"),
    *("__iter__", "__next__", "__len__", "__bool__", "__int__", "__float__", "__complex__"),
    *("__hash__", "__missing__", "__enter__", "__exit__", *_OPERATORS),
    *(f"__r{name.removeprefix('__')}" for name in _OPERATORS),
)
_HIDDEN = ("eval", "exec", "globals")  # built-in functions that read what no code names


@dataclass(frozen=True, slots=True)
class State:
    """What a program reads from outside, as a value to compare with a later one.

    `tensors` are those among it; `is_whole` says that nothing else could change it. `unseen` is
    what the program's own code reads and no walk can compare, described; "" if there is none.
    """

    entries: tuple[Any, ...]
    tensors: tuple[Any, ...] = field(compare=False)
    is_whole: bool = field(compare=False)
    unseen: str = field(compare=False, default="")


def environment_of(program: Any) -> State:
    """What `program` reads from outside now."""
    return _Walk(program).state()


def guarded_state(program: Any) -> tuple[State, Callable[[], bool]]:
    """What `program` reads from outside now, and a function that says whether that is still so.

    Where it says no, only another walk can decide. A program that reads something unseen runs as
    written, which is right whatever changes: the answer is then always yes.
    """
    walk = _Walk(program)
    state = walk.state()
    return state, (lambda: True) if state.unseen else walk.guards.check()


class Environment:
    """What a program reads from outside; walked through again only where a guard fails."""

    def __init__(self, program: Callable[..., Any]) -> None:
        self.program = program
        self._known: tuple[State, Callable[[], bool]] | None = None

    def state(self) -> tuple[State, Callable[[], bool]]:
        """What it reads now, and a function that says whether that is still so."""
        known = self._known
        if known is None or not known[1]():
            known = self._known = guarded_state(self.program)
        return known


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A module whose parameters and buffers are given to the program, not read from outside."""

    module: nn.Module


class _Walk:
    """One walk through all that a program reads, nearest things first.

    What is found at a depth above `_DEPTH` is *near*: the user's own code names it, and all of it
    counts. The rest is *far*, and comes afterwards.
    """

    def __init__(self, program: Any) -> None:
        self.home = home_of(program)
        self.seen: set[int] = set()
        self.near = deque([(program, _NEAR)])
        self.far: deque[tuple[Any, int]] = deque()
        self.left = _LIMIT  # how many more things may be looked at
        self.tensors: list[Any] = []
        self.guards = Guards()
        self.is_whole = True
        self.unseen = ""
        # Names that the code which was met mentions, and those of code farther away.
        self.names, self.far_names = set(_CALLED), set[str]()
        self.unnamed: list[tuple[str, Any]] = []  # attributes that it does not mention so far
        # Classes and modules of the user, and which of their attributes were met.
        self.classes: dict[type | ModuleType, set[str]] = {}

    def state(self) -> State:
        """What is found."""
        entries = (*self._entries(self.near), *self._far_entries())
        whole = self.is_whole and not self.unseen
        return State(entries, tuple(self.tensors), whole, self.unseen)

    def _entries(self, queue: deque[tuple[Any, int]]) -> Iterator[Any]:
        while self.left > 0 and not self.unseen:
            if not queue:
                yield from self._of_classes(queue)
            if not queue:
                return
            self.left -= 1
            yield from self._entry(*queue.popleft())
        if queue is self.near:
            self.unseen = self.unseen or f"more than {_LIMIT:,} things in lists, dicts and objects"
        self.is_whole = False

    def _far_entries(self) -> Iterator[Any]:
        self.far.extend((value, _DEPTH - 1) for _, value in self.unnamed)
        self.left = _FAR_LIMIT
        self.names = self.far_names = self.names | self.far_names
        if not self.unseen:
            yield from self._entries(self.far)

    def _entry(self, value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, ATOMS):
            yield atom(value)
        elif isinstance(value, bytearray):
            self.guards.is_complete = False  # changed in place, it is still the same thing
            yield bytearray, bytes(value)
        elif isinstance(value, Tensor):
            self.tensors.append(tensor_kind(value))
            self.guards.tensor(value)
            yield self.tensors[-1]
            yield from self._of_attributes(value, depth)
        elif isinstance(value, MethodType):  # a new one at every read
            self._add(depth + 1, value.__self__, value.__func__)
        elif id(value) in self.seen:
            yield Same(value)
        elif depth == 0:
            self.is_whole = False
            yield Same(value)
        else:
            self.seen.add(id(value))
            yield from self._inside(value, depth)

    def _add(self, depth: int, *values: Any) -> None:
        queue = self.near if depth - 1 > _DEPTH else self.far
        queue.extend((value, depth - 1) for value in values)

    def _add_attribute(self, name: str, value: Any, depth: int) -> None:
        """An attribute of an object: near if the code names it."""
        if depth <= _DEPTH or name in self.names:
            self._add(depth, value)
        else:
            self.unnamed.append((name, value))

    def _inside(self, value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, FunctionType):
            yield Same(value.__code__)
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
            yield from self._of_values(value, list(value), depth)
            yield from self._of_attributes(value, depth)
        elif isinstance(value, dict):
            yield tuple(map(dict_key, list(value)[: self._length(depth)]))
            yield from self._of_values(value, list(value.values()), depth)
            yield from self._of_attributes(value, depth)
        elif isinstance(value, (type, ModuleType)):
            yield Same(value)
            self._note(value)
        elif isinstance(value, ContextVar):
            yield Same(value)
            self.guards.variable(value)
            self._add(depth, value.get(None))
        else:
            yield from self._of_object(value, depth)

    def _length(self, depth: int) -> int:
        """How many elements of a container are looked at."""
        return max(self.left, 0) if depth > _DEPTH else _LENGTH

    def _of_values(self, container: Any, values: list[Any], depth: int) -> Iterator[Any]:
        """What a container holds."""
        length = self._length(depth)
        if len(values) > length:
            self.is_whole = False
            self.left = 0 if depth > _DEPTH else self.left
            values = values[:length]
        if isinstance(container, dict):
            self.guards.items(container, length)
        else:
            self.guards.row(container, length)
        if all(isinstance(value, ATOMS) for value in values):
            self.left -= len(values) if depth > _DEPTH else 0
            yield tuple(map(atom, values))
        else:
            self._add(depth, *values)

    def _of_attributes(self, value: Any, depth: int) -> Iterator[Any]:
        """Attributes that were set on a thing which usually has none."""
        if hasattr(value, "__dict__"):
            yield from self._of_own(vars(value), depth)

    def _of_own(self, attributes: Any, depth: int) -> Iterator[Any]:
        """The attributes of one object."""
        yield tuple(attributes)
        self.guards.items(attributes)
        for name, value in list(attributes.items()):
            if isinstance(value, ATOMS):
                yield atom(value)
            else:
                self._add_attribute(name, value, depth)

    def _of_object(self, value: Any, depth: int) -> Iterator[Any]:
        kind = type(value)
        yield Same(value)
        if isinstance(value, BuiltinFunctionType):
            self._add(depth, *([] if value.__self__ is None else [value.__self__]))
        elif isinstance(value, (staticmethod, classmethod)):
            self._add(depth + 1, value.__func__)
        elif isinstance(value, property):
            self._add(depth + 1, value.fget)
        elif isinstance(value, functools.cached_property):
            self._add(depth + 1, value.func)
        elif isinstance(value, threading.local):  # each thread has attributes of its own
            self.guards.is_complete = False
            yield from self._of_own(vars(value), depth)
        elif (size := array_bytes(value)) is not None and size <= _BYTES:
            self.guards.array(value)
            yield array_digest(value)
        elif size is not None:
            self._miss(f"an array of {size >> 20} MiB (`{kind.__name__}`)", depth)
        elif isinstance(value, weakref.ReferenceType):
            self.guards.is_complete = False  # what it refers to may be gone
            self._add(depth + 1, value())
        elif (memory := buffer_of(value)) is not None and memory.nbytes <= _BYTES:
            self.guards.is_complete = False
            yield memory.tobytes()
        elif memory is not None:
            self._miss(f"memory of {memory.nbytes >> 20} MiB (`{kind.__name__}`)", depth)
        else:
            yield from self._of_plain_object(value, depth)

    def _of_plain_object(self, value: Any, depth: int) -> Iterator[Any]:
        kind = type(value)
        is_python = all(is_text(class_module(base)) for base in kind.__mro__[:-1])
        if not is_python and hasattr(kind, "__next__"):
            self._miss(f"an iterator, which every read changes (`{kind.__name__}`)", depth)
        self.guards.attribute(value, "__class__")
        yield from self._of_own(getattr(value, "__dict__", {}), depth)
        for name in slot_names(kind):
            self.guards.attribute(value, name)
            self._add_attribute(name, getattr(value, name, None), depth)
        self._note(kind)
        self.is_whole &= isinstance(value, _FIXED) or is_python

    def _miss(self, what: str, depth: int) -> None:
        """Note what cannot be compared."""
        self.is_whole = False
        if depth > _DEPTH:
            self.unseen = self.unseen or what

    def _of_module(
        self, module: nn.Module, depth: int, *, has_tensors: bool = True
    ) -> Iterator[Any]:
        """A module, and those inside it however deep; `has_tensors`, whether theirs count, too."""
        for each in module.modules():
            self.seen.add(id(each))
            self._note(type(each))
            yield Same(each)
            self.guards.attribute(each, "__class__")
            self.guards.size(vars(each))
            for name, value in list(vars(each).items()):
                if name.startswith("__"):
                    continue  # what a library (FSDP) notes down for itself
                self.guards.item(vars(each), name)
                if name in _TENSORS and not has_tensors:
                    self.guards.size(value)
                    yield tuple(value)
                    continue
                if name in (*_TENSORS, "_modules"):
                    self.guards.items(value)
                if name in _TENSORS:
                    for key, tensor in value.items():
                        yield key
                        yield from self._entry(tensor, depth)
                elif name != "_modules" and (isinstance(value, Tensor) or value):
                    yield name
                    self._add_attribute(name, value, depth)
                elif isinstance(value, Sized):
                    self.guards.size(value)
                elif name != "_modules":
                    yield name
                    yield from self._entry(value, depth)

    def _note(self, value: type | ModuleType) -> None:
        """Remember a class of the user's; of other libraries, only some are known to be pure."""
        if isinstance(value, type):
            for base in value.__mro__:
                if is_users_module(class_module(base)):
                    self.classes.setdefault(base, set())
            self.guards.attribute(value, "__mro__")
            name, module = value.__module__, class_module(value)
        else:
            name, module = value.__name__, value
            if is_users_module(value):
                self.classes.setdefault(value, set())
        self.is_whole &= name.split(".")[0] in PURE or is_users_module(module)

    def _of_classes(self, queue: deque[tuple[Any, int]]) -> Iterator[Any]:
        """The attributes that the code mentions: of the user's classes and modules, and others."""
        for cls, met in list(self.classes.items()):
            module = cls if isinstance(cls, ModuleType) else class_module(cls)
            file = getattr(module, "__file__", None) or ""
            name = getattr(module, "__name__", "")  # code that was run as text is of no module
            is_far = queue is self.far or is_elsewhere(name, file, self.home)
            found = [n for n in vars(cls) if n in self.names and n not in met]
            met.update(found)
            self.guards.size(vars(cls))
            for name in found:
                self.guards.item(vars(cls), name)
                yield name
                self._add(_DEPTH if is_far else _NEAR, vars(cls)[name])
        if queue is self.near:
            named = [value for name, value in self.unnamed if name in self.names]
            self.unnamed = [one for one in self.unnamed if one[0] not in self.names]
            self._add(_NEAR, *named)

    def _add_function(self, function: FunctionType, depth: int) -> None:
        wrapped = inspect.unwrap(function)
        for name in ("__code__", "__wrapped__", "__defaults__", "__kwdefaults__"):
            self.guards.attribute(function, name)
        if wrapped is not function:
            self._add(depth + 1, wrapped)
        if not is_users_file(function.__code__.co_filename):
            library = str(function.__globals__.get("__name__")).split(".")[0]
            self.is_whole &= library in PURE
            if library == "pullback":  # a wrapper of something that the user wrote
                self._add_variables(function, depth + 1)
            return
        module = str(function.__globals__.get("__name__"))
        if is_elsewhere(module, function.__code__.co_filename, self.home):
            depth = min(depth, _DEPTH)
        self._add(depth, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self.guards.items(function.__kwdefaults__ or {})
        self._add_variables(function, depth)
        names = names_in(function.__code__)
        hidden = [name for name in _HIDDEN if name in globals_in(function.__code__)]
        for name in hidden if depth > _DEPTH else ():
            if name not in function.__globals__:
                self._miss(f"whatever `{name}` reads", depth)
        (self.names if depth > _DEPTH else self.far_names).update(names)
        for name in names:
            value = meaning_of(name, function.__globals__)
            if name in function.__globals__ or name in globals_in(function.__code__):
                self.guards.item(function.__globals__, name)
            if name in sys.modules and value is sys.modules[name]:
                self.guards.item(sys.modules, name)
            self._add(depth, value)
            if isinstance(value, ModuleType) and not is_pure(value):
                for inner in names:
                    self.guards.item(vars(value), inner)
                self._add(depth, *map(vars(value).get, names))

    def _add_variables(self, function: FunctionType, depth: int) -> None:
        """The variables of enclosing functions."""
        for cell in function.__closure__ or ():
            self.guards.cell(cell)
            self._add(depth, contents(cell))
