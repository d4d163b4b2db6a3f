"""The graphs of a node without what need not go through them.

A forward graph returns outputs, saved tensors and saved numbers, many of which are its own inputs,
or the same value twice; a backward graph may return a cotangent as it is, or nothing. A minimal
graph returns each value that it *makes* once, and says where all the others come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from pullback.graph.copies import copy_of
from pullback.run.node import Compiled, Source


@dataclass(frozen=True, slots=True, eq=False)
class Minimal:
    """A graph that returns what it makes, and where each value of the first one comes from.

    A value that is neither made nor an input is a plain one: a number, or None.
    """

    graph: fx.Graph
    sources: tuple[Any, ...]

    @property
    def made_count(self) -> int:
        """How many values the graph returns."""
        returned: Any = self.graph.output_node().args[0]
        return len(returned)


def minimal(graph: fx.Graph, count: int | None = None) -> Minimal:
    """`graph` with the first `count` values that it returns, or all of them."""
    copy, _ = copy_of(graph)
    inputs = list(copy.find_nodes(op="placeholder"))
    output = copy.output_node()
    returned: Any = output.args[0]
    made: list[fx.Node] = []
    sources: list[Any] = []
    for value in returned[:count]:
        if not isinstance(value, fx.Node):
            sources.append(value)
        elif value in inputs:
            sources.append(Source(True, inputs.index(value)))
        else:
            if value not in made:
                made.append(value)
            sources.append(Source(False, made.index(value)))
    output.args = (tuple(made),)
    copy.eliminate_dead_code()
    return Minimal(copy, tuple(sources))


def whole(minimal: Minimal, compiled: Compiled) -> Compiled:
    """A function that gives all values of the first graph, for the compiled minimal one."""
    if minimal.sources == tuple(Source(False, i) for i in range(minimal.made_count)):
        return compiled
    if not minimal.made_count:
        return _picking(minimal.sources, lambda row: ())
    return _picking(minimal.sources, compiled)


def _picking(sources: Sequence[Any], compiled: Callable[[list[Any]], Sequence[Any]]) -> Compiled:
    def run(row: list[Any]) -> list[Any]:
        given = tuple(row)  # which the compiled graph may clear
        made = compiled(row)
        return [
            (given if one.is_input else made)[one.place] if isinstance(one, Source) else one
            for one in sources
        ]

    return run
