"""Guards: whether all that a program was seen to read is still the same, asked in a microsecond.

A walk through closures, globals and attributes (`environment.py`) takes as long as several ops.
Each place that it reads is noted here with what was found there; asked again, the same thing must
still be in each place. That is stricter than the walk: an equal number that was rebound is
another thing, and another walk must then decide.

The check is one generated expression, so that a place costs some tens of nanoseconds. Tensors are
held by weak references: what the user drops is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, MutableSequence, Sequence, Sized
from contextvars import ContextVar
from operator import is_
from typing import Any

from torch import Tensor, strided

from pullback.function.generated import run_text

_FEW = 8  # elements, each of which is then a term of its own


class Guards:
    """The places that were read. `is_complete` says that nothing was read that has no place."""

    def __init__(self) -> None:
        self.is_complete = True
        self._terms: list[str] = []
        self._names: dict[str, Any] = {"is_": is_}
        self._known: dict[int, str] = {}

    # ---- noting ----

    def item(self, mapping: Mapping[Any, Any], key: Any) -> None:
        """What `mapping` holds under `key`, or that it holds nothing."""
        name, place = self._name(mapping), repr(key) if type(key) is str else self._name(key)
        if key in mapping:
            self._terms.append(f"{name}[{place}] is {self._thing(mapping[key])}")
        else:
            self._terms.append(f"{place} not in {name}")

    def items(self, mapping: Mapping[Any, Any], limit: int | None = None) -> None:
        """What `mapping` holds under each key, up to `limit` of them, and nothing more."""
        self.size(mapping)
        keys, values = list(mapping)[:limit], list(mapping.values())[:limit]
        if self._is_many(values):
            self._same(self._name(mapping), keys)
            self._same(f"{self._name(mapping)}.values()", values)
            return
        for key in keys:
            self.item(mapping, key)

    def attribute(self, owner: Any, name: str) -> None:
        """What `owner` holds as the attribute `name`."""
        if hasattr(owner, name):
            self._terms.append(f"{self._name(owner)}.{name} is {self._thing(getattr(owner, name))}")
        else:
            self._terms.append(f"not hasattr({self._name(owner)}, {name!r})")

    def cell(self, cell: Any) -> None:
        """What a variable of an enclosing function holds; an empty one has no guard."""
        try:
            value = self._thing(cell.cell_contents)
        except ValueError:
            self.is_complete = False
        else:
            self._terms.append(f"{self._name(cell)}.cell_contents is {value}")

    def size(self, container: Sized) -> None:
        """How many things a container holds."""
        self._terms.append(f"len({self._name(container)}) == {len(container)}")

    def row(self, row: Any, limit: int | None = None) -> None:
        """What a list, deque or set holds, up to `limit` things; a tuple cannot change."""
        if isinstance(row, (tuple, frozenset)):
            return
        self.size(row)
        name, values = self._name(row), list(row)[:limit]
        if isinstance(row, set) and all(type(one) is str for one in row):
            self._terms.append(f"{name} == {self._name(frozenset(row))}")
        elif self._is_many(values) or not isinstance(row, MutableSequence):
            self._same(name, values)
        else:
            self._terms += [f"{name}[{i}] is {self._thing(one)}" for i, one in enumerate(values)]

    def variable(self, variable: ContextVar[Any]) -> None:
        """What a context variable holds here; one without a value counts as None."""
        self._terms.append(f"{self._name(variable)}.get(None) is {self._thing(variable.get(None))}")

    def _is_many(self, values: Sequence[Any]) -> bool:
        """Whether values are better compared in one go: many, and no tensor to be kept alive."""
        return len(values) > _FEW and not any(isinstance(value, Tensor) for value in values)

    def _same(self, iterable: str, values: Sequence[Any]) -> None:
        """That an iterable of known length begins with just these values."""
        self.is_complete &= not any(isinstance(value, Tensor) for value in values)
        self._terms.append(f"all(map(is_, {iterable}, {self._name(values)}))")

    def array(self, array: Any) -> None:
        """The values of an array of another library."""
        name, values = self._name(array), self._name(array.tobytes())
        if hasattr(array, "shape"):
            self._terms.append(f"{name}.shape == {self._name(array.shape)}")
        self._terms.append(f"{name}.tobytes() == {values}")

    def tensor(self, tensor: Tensor) -> None:
        """What a tensor is, though not its values."""
        name = self._thing(tensor)
        if tensor.layout is not strided:
            self.is_complete = False
            return
        wanted = {"shape": tensor.shape, "stride()": tensor.stride(), "device": tensor.device}
        self._terms += [f"{name}.{what} == {self._name(value)}" for what, value in wanted.items()]
        self._terms.append(f"{name}.dtype is {self._name(tensor.dtype)}")
        self._terms.append(f"{name}.requires_grad is {tensor.requires_grad}")

    # ---- asking ----

    def check(self) -> Callable[[], bool]:
        """A function that says whether each place still holds the same; it keeps them alive."""
        if not self.is_complete:
            return _never
        terms = list(dict.fromkeys(self._terms))
        text = "def holds():\n    try:\n        return " + " and ".join(terms or ["True"])
        raised = "AttributeError, LookupError, RuntimeError, ValueError"
        text += f"\n    except ({raised}):\n        return False\n"
        run_text(text, "guards of a program", self._names)
        function: Callable[[], bool] = self._names["holds"]
        return function

    def _name(self, value: Any) -> str:
        name = self._known.get(id(value))
        if name is None:
            name = self._known[id(value)] = f"v{len(self._names)}"
            self._names[name] = value
        return name

    def _thing(self, value: Any) -> str:
        """An expression for `value` itself."""
        if value is None or value is True or value is False:
            return str(value)
        if isinstance(value, Tensor):
            return f"{self._name(weakref.ref(value))}()"  # the one that a tensor has
        return self._name(value)


def _never() -> bool:
    return False
