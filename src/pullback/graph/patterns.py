"""Patterns of nodes, written like the formulas they match: `-a * b`.

A pattern is tried on an argument of a node, and gives every way to bind its wildcards. Inside a
pattern, a call matches only a node with one user: what is rewritten then disappears. `shared(...)`
lifts that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from torch import fx

from pullback.graph.values import aten, is_scalar, tensor_of

Binding = dict[str, Any]


class AbstractPattern:
    """What an argument may look like."""

    __slots__ = ()

    def matches(self, arg: Any, bound: Binding) -> Iterator[Binding]:
        """Every way to extend `bound` so that the pattern is `arg`."""
        raise NotImplementedError

    def __neg__(self) -> CallPattern:
        return call(aten.neg.default, self)

    def __add__(self, other: Any) -> CallPattern:
        return CallPattern(aten.add.Tensor, (self, other), commutes=True)

    def __sub__(self, other: Any) -> CallPattern:
        return call(aten.sub.Tensor, self, other)

    def __mul__(self, other: Any) -> CallPattern:
        return CallPattern(aten.mul.Tensor, (self, other), commutes=True)

    def __truediv__(self, other: Any) -> CallPattern:
        return call(aten.div.Tensor, self, other)

    def __pow__(self, other: Any) -> CallPattern:
        return call(aten.pow.Tensor_Scalar, self, other)


@dataclass(frozen=True, slots=True)
class Wildcard(AbstractPattern):
    """Any tensor, or any number; the same one wherever the name returns."""

    name: str
    is_number: bool = False

    def matches(self, arg: Any, bound: Binding) -> Iterator[Binding]:
        """Bind the name, or find it bound to the same thing."""
        fits = is_scalar(arg) if self.is_number else tensor_of(arg) is not None
        if fits and self.name not in bound:
            yield bound | {self.name: arg}
        elif fits and _identical(bound[self.name], arg):
            yield bound


@dataclass(frozen=True, slots=True)
class CallPattern(AbstractPattern):
    """A call of `target` with positional arguments that match; keywords are not allowed."""

    target: Any
    args: tuple[Any, ...]
    commutes: bool = False
    is_shared: bool = False

    def matches(self, arg: Any, bound: Binding) -> Iterator[Binding]:
        """Match a node that nothing else uses, unless the pattern is shared."""
        if isinstance(arg, fx.Node) and (self.is_shared or len(arg.users) == 1):
            yield from self.matches_root(arg, bound)

    def matches_root(self, node: fx.Node, bound: Binding) -> Iterator[Binding]:
        """Match a node, whatever uses it."""
        if node.op != "call_function" or node.target != self.target or node.kwargs:
            return
        if len(node.args) != len(self.args):
            return
        orders = permutations(node.args) if self.commutes else iter([node.args])
        for args in orders:
            yield from _match_all(self.args, args, bound)


def call(target: Any, *args: Any) -> CallPattern:
    """The pattern of a call of `target`."""
    return CallPattern(target, args)


def also_shared(pattern: CallPattern) -> CallPattern:
    """`pattern`, also where the node has other users, which keep it alive."""
    return replace(pattern, is_shared=True)


def tensors(names: str) -> tuple[Wildcard, ...]:
    """Wildcards for tensors, one per name."""
    return tuple(map(Wildcard, names.split()))


def any_number(name: str) -> Wildcard:
    """A wildcard for a literal number or a symbolic size."""
    return Wildcard(name, is_number=True)


def _match_all(patterns: tuple[Any, ...], args: tuple[Any, ...], bound: Binding) -> Iterator[Any]:
    if not patterns:
        yield bound
        return
    for extended in _match_one(patterns[0], args[0], bound):
        yield from _match_all(patterns[1:], args[1:], extended)


def _match_one(pattern: Any, arg: Any, bound: Binding) -> Iterator[Binding]:
    if isinstance(pattern, AbstractPattern):
        yield from pattern.matches(arg, bound)
    elif _is_literal(arg) and arg == pattern:
        yield bound


def _identical(a: Any, b: Any) -> bool:
    return a is b if isinstance(a, fx.Node) else _is_literal(b) and bool(a == b)


def _is_literal(arg: Any) -> bool:
    return isinstance(arg, int | float) and not isinstance(arg, bool)
