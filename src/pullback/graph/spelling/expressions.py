"""Expressions: Python text with its precedence, and the writer that spells arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

from pullback.errors import UnsupportedOpError
from pullback.graph.cost import expression_of
from pullback.graph.literals import python_literal
from pullback.graph.values import same_sizes, tensor_of

# How tightly an expression holds together, as in Python's grammar.
COMPARED, OR, AND, SUM, PRODUCT, SIGN, POWER, ATOM = range(8)


@dataclass(frozen=True, slots=True)
class Expression:
    """A piece of Python: its text, how tightly it binds, and how many ops stand in it.

    A call keeps its head and arguments too, so that it can be broken over lines.
    """

    text: str
    level: int = ATOM
    size: int = 1
    head: str = ""
    arguments: tuple[str, ...] = ()

    def within(self, level: int) -> str:
        """The text as an operand of something that binds as tightly as `level`."""
        return self.text if self.level >= level else f"({self.text})"


class PythonText(str):
    """Text that is Python already."""


@dataclass(slots=True)
class TensorsInSight:
    """Tensors that have names in a text, whose sizes, dtypes and devices it may read."""

    placeholders: Sequence[fx.Node]
    names: Mapping[fx.Node, str]

    def with_size(self, size: Any) -> tuple[str, int] | None:
        """The name of the first tensor that has a symbolic size, and in which dimension."""
        return self.place_of(expression_of(size))

    def place_of(self, wanted: Any) -> tuple[str, int] | None:
        """The same for what a size is: a symbol, or an expression of such."""
        for node in self.placeholders:
            value = tensor_of(node)
            for dim, other in enumerate(() if value is None else value.shape):
                if expression_of(other) == wanted:
                    return self.names[node], dim
        return None

    def name_like(self, *, dtype: Any = None, device: Any = None, sizes: Any = None) -> str:
        """The name of the first tensor of this dtype, device and sizes; nothing if none is."""
        for node in self.placeholders:
            value = tensor_of(node)
            if value is None or dtype not in (None, value.dtype):
                continue
            if device not in (None, value.device):
                continue
            if sizes is None or same_sizes(value.shape, sizes):
                return self.names[node]
        return ""


@dataclass(slots=True)
class PythonWriter(TensorsInSight):
    """Spells arguments: nodes by their names or by the expressions they are replaced by.

    `dtypes` are those that the tensors of a call bring along, with a name for each where no tensor
    in sight has it; by default, those of all tensors in sight.
    """

    inlined: dict[fx.Node, Expression]
    dtypes: Mapping[torch.dtype, str] | None = None

    def arg(self, arg: Any) -> str:
        """The text of an argument, as it stands alone."""
        return self.expression(arg).text

    def expression(self, arg: Any) -> Expression:
        """The expression for an argument of a node."""
        if isinstance(arg, PythonText):
            return Expression(arg, size=0)
        if isinstance(arg, fx.Node):
            return self.inlined.get(arg) or Expression(self.names[arg], size=0)
        if isinstance(arg, list | tuple):
            parts = [self.expression(item) for item in arg]
            text = _listed(arg, [part.text for part in parts])
            return Expression(text, size=sum(part.size for part in parts))
        if isinstance(arg, torch.SymInt):
            return Expression(self.size(arg), PRODUCT if self.with_size(arg) else SUM)
        return _constant(arg)

    def size(self, size: Any) -> str:
        """A size, read from the argument that has it, or made of such: `x.shape[2] + 2`."""
        if found := self.with_size(size):
            return f"{found[0]}.shape[{found[1]}]"
        expression = expression_of(size)
        known = {symbol: self.place_of(symbol) for symbol in expression.free_symbols}
        if all(known.values()) and expression.is_polynomial():
            names = {s: sympy.Symbol(f"{at[0]}.shape[{at[1]}]") for s, at in known.items() if at}
            return str(expression.xreplace(names))
        raise UnsupportedOpError(
            "a size in the graph must be the size of one of its arguments",
            got=f"`{size}`",
            fix="read it from a tensor in the graph",
        )

    def shape(self, sizes: Any) -> str:
        """The sizes of a new tensor: `x.shape` where an argument has them all, else a tuple."""
        alike = self.like(sizes)
        return f"{alike}.shape" if alike else self.arg(tuple(sizes))

    def like(self, sizes: Any) -> str:
        """The name of an argument with these sizes, or nothing."""
        wanted = [tensor.meta["val"] if isinstance(tensor, fx.Node) else tensor for tensor in sizes]
        return self.name_like(sizes=wanted) if wanted else ""

    def call(self, head: str, *args: Any, **kwargs: Any) -> Expression:
        """A call of `head` with arguments that are spelled here, unless they are text already."""
        parts = [*map(self.expression, args), *map(self.expression, kwargs.values())]
        keys = [""] * len(args) + [f"{key}=" for key in kwargs]
        listed = tuple(key + part.text for key, part in zip(keys, parts, strict=True))
        size = 1 + sum(part.size for part in parts)
        return Expression(f"{head}({', '.join(listed)})", ATOM, size, head, listed)

    def method(self, owner: Any, name: str, *args: Any, **kwargs: Any) -> Expression:
        """A call of a method of the tensor `owner`."""
        inner = self.expression(owner)
        call = self.call(f"{inner.within(ATOM)}.{name}", *args, **kwargs)
        return replace(call, size=call.size + inner.size)

    def attribute(self, owner: Any, suffix: str) -> Expression:
        """`owner.suffix` or `owner[suffix]`, with the suffix as it is."""
        inner = self.expression(owner)
        return Expression(inner.within(ATOM) + suffix, ATOM, inner.size + 1)

    def dtype(self, dtype: Any) -> Any:
        """`x.dtype` where an argument has a dtype that is not the same for every call."""
        is_number = isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
        if not is_number or dtype not in (self.dtypes or {dtype: ""}):
            return dtype
        if alike := self.name_like(dtype=dtype):
            return PythonText(f"{alike}.dtype")
        return PythonText(self.dtypes[dtype]) if self.dtypes else dtype

    def device(self, device: Any) -> Any:
        """`x.device` where an argument is on the device, else the device itself."""
        alike = self.name_like(device=device)
        return PythonText(f"{alike}.device") if alike else device


Spelling = Callable[[PythonWriter, fx.Node], Expression | None]
"""Writes one op; None where it has no good form for these arguments."""

Spellings = dict[Any, Spelling]


def _listed(arg: Any, items: list[str]) -> str:
    if isinstance(arg, list):
        return f"[{', '.join(items)}]"
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _constant(arg: Any) -> Expression:
    """A literal, or the formula that a number is known by: `2**0.5`."""
    if isinstance(arg, float):
        if abs(arg) in KNOWN:
            sign, level = ("-", SIGN) if arg < 0 else ("", POWER)
            return Expression(f"{sign}{KNOWN[abs(arg)]}", level, size=0)
        if not math.isfinite(arg):
            text = f"{'-' if arg < 0 else ''}torch.{'nan' if math.isnan(arg) else 'inf'}"
            return Expression(text, SIGN if arg < 0 else ATOM, size=0)
    text = python_literal(arg)
    return Expression(text, SIGN if text.startswith("-") else ATOM, size=0)


def _known() -> dict[float, str]:
    """Numbers that are roots, and how they are written so that Python gives the same bits."""
    roots = {f"{n}**0.5": n**0.5 for n in range(2, 4097) if math.isqrt(n) ** 2 != n}
    inverse = {f"{n}**-0.5": n**-0.5 for n in range(2, 4097) if math.isqrt(n) ** 2 != n}
    bells = {
        "(2 / torch.pi) ** 0.5": (2 / math.pi) ** 0.5,
        "torch.pi**-0.5": math.pi**-0.5,
        "(2 * torch.pi) ** -0.5": (2 * math.pi) ** -0.5,
    }
    return {number: text for text, number in {**inverse, **roots, **bells}.items()}


KNOWN = _known()
