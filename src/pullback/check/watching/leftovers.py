"""What the calls of a function may leave behind, and a function as it was before them.

Looked at are the values and containers on the class, and the containers that its methods, or a
plain function, name around them.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

CONTAINERS = (dict, list, set)
VALUES = (int, float, complex, tuple, Tensor, type(None))


@dataclass(frozen=True, slots=True, eq=False)
class Leftovers:
    """The values on a class, and what the containers hold, at one time."""

    owner: Any
    values: dict[str, Any]
    contents: tuple[tuple[Any, Any], ...]

    def emptied(self) -> Leftovers:
        """The same with nothing in them."""
        values = dict.fromkeys(self.values)
        return Leftovers(self.owner, values, tuple((c, type(c)()) for c, _ in self.contents))

    def put_back(self) -> None:
        """Make all of it as it was."""
        for name in _values(self.owner):
            if name not in self.values:
                delattr(self.owner, name)
        for name, value in self.values.items():
            setattr(self.owner, name, value)
        for container, content in self.contents:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)

    @property
    def is_changed(self) -> bool:
        """Whether something is other than it was."""
        values = _values(self.owner)
        if values.keys() != self.values.keys():
            return True
        if any(values[name] is not old for name, old in self.values.items()):
            return True
        return any(_identity(now) != _identity(old) for now, old in self.contents)


def leftovers_of(owner: Any, functions: Sequence[Any]) -> Leftovers:
    """What there is now on a class, if there is one, and around its methods or a function."""
    contents = tuple((one, one.copy()) for one in _containers(owner, functions))
    return Leftovers(owner, _values(owner), contents)


def _values(owner: Any) -> dict[str, Any]:
    if owner is None:
        return {}
    return {
        name: value
        for name, value in vars(owner).items()
        if isinstance(value, VALUES)
        and not isinstance(value, bool)
        and not name.startswith(("__", "_pb_"))
        and name != "declares"
    }


def _containers(owner: Any, functions: Sequence[Any]) -> list[Any]:
    held = {} if owner is None else vars(owner)
    found = [value for name, value in held.items() if name != "declares"]
    for function in functions:
        try:
            seen = inspect.getclosurevars(inspect.unwrap(function))
        except (TypeError, ValueError):
            continue
        found += [*seen.globals.values(), *seen.nonlocals.values()]
    plain = [value for value in found if type(value) in CONTAINERS]
    return list({id(value): value for value in plain}.values())


def _identity(container: Any) -> Any:
    """What a container holds, without asking whether two tensors are equal."""
    if isinstance(container, dict):
        return [(key, id(value)) for key, value in container.items()]
    return [id(value) for value in container] if isinstance(container, list) else set(container)
