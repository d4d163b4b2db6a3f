"""Numbers that record what a program does with them.

A watched number takes the place of a plain argument while a program runs. Arithmetic gives watched
numbers again, each with its formula. A comparison is answered and noted: it is a condition under
which the program does the same. An op of PyTorch gets the number itself, and the formula is noted.
Any other use, such as `int(n)` or `math.sqrt(n)`, is an escape: nothing is known from there on.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback.capture.trees import map_leaves
from pullback.graph.spelling.operators import SIGNS


@dataclass(slots=True)
class Notes:
    """What was seen of watched numbers: formulas that reached ops, conditions, names that escaped.

    A formula is text that means the same in Python and in C++; `double` is Python's `float`.
    """

    formulas: dict[str, None] = field(default_factory=dict)
    conditions: dict[str, frozenset[str]] = field(default_factory=dict)
    escaped: set[str] = field(default_factory=set)


def value_at(formula: str, values: dict[str, Any]) -> Any:
    """The value of a formula, or of a condition, for these values of the arguments."""
    return eval(formula, {"__builtins__": {}, "double": float}, dict(values))


class Watched:
    """A number, its formula, and the names of the arguments in it."""

    __slots__ = ("formula", "names", "notes", "value")

    def __init__(self, value: Any, formula: str, names: frozenset[str], notes: Notes) -> None:
        self.value = value
        self.formula = formula
        self.names = names
        self.notes = notes

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The type that `isinstance` sees: that of the number."""
        return type(self.value)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*_released(args), **_released(kwargs or {}))

    def __bool__(self) -> bool:
        return bool(_compared("!=", operator.ne)(self, 0))

    def __neg__(self) -> Watched:
        return Watched(-self.value, f"(-{self.formula})", self.names, self.notes)

    def release(self) -> Any:
        """The number itself, for an op."""
        self.notes.formulas[self.formula] = None
        return self.value

    def escape(self) -> Any:
        """The number itself, for a use that nothing is known of."""
        self.notes.escaped |= self.names
        return self.value


class Listening(TorchFunctionMode):
    """Ops get the numbers themselves, also those that do not look at the types of numbers."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*_released(args), **_released(kwargs or {}))


def _released(tree: Any) -> Any:
    return map_leaves(lambda leaf: leaf.release() if isinstance(leaf, Watched) else leaf, tree)


# ---- what Python does with numbers ----


def _is_known(value: Any) -> bool:
    """Whether a number can stand in a formula."""
    if isinstance(value, Watched):
        return True
    is_plain = type(value) in (int, float)
    return is_plain and math.isfinite(value) and abs(value) < 2**63


def _formula(value: Any) -> str:
    if isinstance(value, Watched):
        return value.formula
    return f"({value!r})" if value < 0 else repr(value)


def _number(value: Any) -> Any:
    return value.value if isinstance(value, Watched) else value


def _combined(a: Any, b: Any, sign: str, value: Any) -> Watched:
    both = [side for side in (a, b) if isinstance(side, Watched)]
    left = f"double({_formula(a)})" if sign == "/" else _formula(a)
    names = frozenset[str]().union(*(side.names for side in both))
    return Watched(value, f"({left} {sign} {_formula(b)})", names, both[0].notes)


def _arithmetic(sign: str, apply: Callable[[Any, Any], Any], *, is_reversed: bool) -> Any:
    def method(self: Watched, other: Any) -> Any:
        if isinstance(other, Tensor):
            return NotImplemented
        a, b = (other, self) if is_reversed else (self, other)
        if not _is_known(other):
            return apply(_escaped(a), _escaped(b))
        return _combined(a, b, sign, apply(_number(a), _number(b)))

    return method


def _compared(sign: str, apply: Callable[[Any, Any], Any]) -> Any:
    def method(self: Watched, other: Any) -> Any:
        if isinstance(other, Tensor) or other is None or isinstance(other, str):
            return NotImplemented
        if not _is_known(other):
            return apply(self.escape(), _escaped(other))
        outcome = bool(apply(self.value, _number(other)))
        is_so = _combined(self, other, sign if outcome else _OPPOSITE[sign], outcome)
        self.notes.conditions[is_so.formula[1:-1]] = is_so.names
        return outcome

    return method


def _escaped(value: Any) -> Any:
    return value.escape() if isinstance(value, Watched) else value


def _escaping(apply: Callable[..., Any]) -> Any:
    def method(self: Watched, *rest: Any) -> Any:
        return apply(self.escape(), *map(_escaped, rest))

    return method


_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_ARITHMETIC = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
    "truediv": ("/", operator.truediv),
}
_ESCAPING: dict[str, Callable[..., Any]] = {
    "float": float,
    "int": int,
    "index": operator.index,
    "complex": complex,
    "hash": hash,
    "repr": repr,
    "str": str,
    "format": format,
    "round": round,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "abs": abs,
    "pow": operator.pow,
    "rpow": lambda a, b: b**a,
    "floordiv": operator.floordiv,
    "rfloordiv": lambda a, b: b // a,
    "mod": operator.mod,
    "rmod": lambda a, b: b % a,
    "divmod": divmod,
    "rdivmod": lambda a, b: divmod(b, a),
}

for _name, (_sign, _apply) in _ARITHMETIC.items():
    setattr(Watched, f"__{_name}__", _arithmetic(_sign, _apply, is_reversed=False))
    setattr(Watched, f"__r{_name}__", _arithmetic(_sign, _apply, is_reversed=True))
for _name, _sign in SIGNS.items():
    setattr(Watched, f"__{_name}__", _compared(_sign, getattr(operator, _name)))
for _name, _call in _ESCAPING.items():
    setattr(Watched, f"__{_name}__", _escaping(_call))
