"""What a program reads from around it, as it is now: has anything changed since it was captured?

A capture holds the decisions and the numbers that the program took from its surroundings: closures,
globals, defaults, attributes of a module. `state_around` writes them down as one value, which is
another one as soon as a name is bound to something else, a list grows or a module goes to `eval`.

Tensors count by what they are and not by their values: a capture reads those when it runs. How far
it looks has limits (`_DEPTH`, `_LIMIT`), and what a library keeps to itself is not seen.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from pullback.capture.places import is_users_file

_DEPTH, _LIMIT, _LENGTH = 5, 500, 200
_PLAIN = (bool, int, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_TENSORS = ("_parameters", "_buffers")  # of a module


def state_around(program: Any) -> tuple[Any, ...]:
    """What `program` reads from around it, as a value to compare with a later one."""
    return tuple(_State(program).entries())


class _Same:
    """An object that counts by its identity, and is kept alive so that this stays its own."""

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)


class _State:
    """One look around, nearest things first."""

    def __init__(self, program: Any) -> None:
        self.seen: set[int] = set()
        self.left = deque([(program, _DEPTH)])

    def entries(self) -> Iterator[Any]:
        """What was found, as plain values."""
        for _ in range(_LIMIT):
            if not self.left:
                return
            value, depth = self.left.popleft()
            if isinstance(value, float):
                yield float, repr(value)  # 0.0 and -0.0 are equal, and not the same
            elif isinstance(value, _PLAIN):
                yield type(value), value
            elif isinstance(value, Tensor):
                yield _kind_of(value)
            elif isinstance(value, MethodType):  # made anew whenever it is read
                self._add(depth + 1, value.__self__, value.__func__)
            elif id(value) in self.seen or depth == 0:
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
        elif isinstance(value, functools.partial):
            self._add(depth + 1, value.func, value.args, value.keywords)
        elif isinstance(value, nn.Module):
            yield from self._of_module(value, depth)
        elif isinstance(value, (list, tuple, set, frozenset)):
            yield type(value), len(value)
            self._add(depth, *list(value)[:_LENGTH])
        elif isinstance(value, dict):
            yield from self._of_dict(value, depth)
        else:
            yield _Same(value)
            if not isinstance(value, (type, ModuleType)):
                yield from self._of_dict(getattr(value, "__dict__", {}), depth)

    def _of_dict(self, value: Any, depth: int) -> Iterator[Any]:
        items = list(value.items())[:_LENGTH]
        yield tuple(key if isinstance(key, (str, int)) else type(key) for key, _ in items)
        self._add(depth, *(item for _, item in items))

    def _of_module(self, module: nn.Module, depth: int) -> Iterator[Any]:
        """A module, and those inside it however deep."""
        for each in module.modules():
            self.seen.add(id(each))
            yield _Same(each)
            for name, value in list(vars(each).items()):
                if name in _TENSORS:
                    for key, tensor in value.items():
                        yield key
                        yield None if tensor is None else _kind_of(tensor)
                elif value is True or (name != "_modules" and value):
                    yield name
                    self._add(depth, value)

    def _add_function(self, function: FunctionType, depth: int) -> None:
        wrapped = inspect.unwrap(function)
        if wrapped is not function:
            self._add(depth + 1, wrapped)
        if not is_users_file(function.__code__.co_filename):
            return
        self._add(depth, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._add(depth, *map(_contents, function.__closure__ or ()))
        names = _names_in(function.__code__)
        for name in names:
            value = function.__globals__.get(name)
            self._add(depth, value)
            if isinstance(value, ModuleType) and is_users_file(
                getattr(value, "__file__", "") or ""
            ):
                self._add(depth, *map(vars(value).get, names))


@functools.lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> tuple[str, ...]:
    """The names that `code` mentions, those of the functions in it included."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    return tuple(dict.fromkeys((*code.co_names, *(n for c in inner for n in _names_in(c)))))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def _kind_of(tensor: Tensor) -> tuple[Any, ...]:
    """What a tensor is; not its values, and nothing that would keep it alive."""
    if tensor.layout is not torch.strided:
        return id(tensor), tensor.dtype, tensor.device, tensor.requires_grad
    kind = (tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad)
    return (id(tensor), *kind)
