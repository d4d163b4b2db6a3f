"""The graphs of a node without what need not go through them.

A forward graph returns outputs, saved tensors and saved numbers, many of which are its own inputs,
or the same value twice; a backward graph may return a cotangent as it is, or nothing. A minimal
graph returns each value that it *makes* once, and says where all the others come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx

from pullback.derive.recipe import Recipe, printed_function
from pullback.graph.copies import copied_graph
from pullback.run.nodes.node import Compiled, ValueSource

if TYPE_CHECKING:
    from pullback.run.backend import Backend


@dataclass(frozen=True, slots=True, eq=False)
class Minimal:
    """A graph that returns what it makes, and where each value of the first one comes from.

    A value that is neither made nor an input is a plain one: a number, or None.
    """

    graph: fx.Graph
    sources: tuple[Any, ...]

    @property
    def made(self) -> tuple[ValueSource, ...]:
        """What the graph itself returns."""
        returned: Any = self.graph.output_node().args[0]
        return tuple(ValueSource(False, place) for place in range(len(returned)))

    @property
    def bare(self) -> Minimal:
        """The same graph for what it makes alone."""
        return Minimal(self.graph, self.made)

    def whole(self, compiled: Compiled) -> Compiled:
        """A function that gives all values of the first graph, for the compiled minimal one."""
        if self.sources == self.made:
            return compiled
        return _picking(self.sources, compiled if self.made else _nothing)

    def compiled(
        self, backend: Backend, row: Sequence[Any], name: str, donated: Sequence[int] = ()
    ) -> Compiled:
        """All values of the first graph, compiled by a backend for arguments like `row`."""
        if not self.made:
            return self.whole(_nothing)
        code = backend.specialise(self.graph, row, name=name, donated=donated)
        return backend.whole(self, code)

    def compiled_for_sizes(
        self, backend: Backend, row: Sequence[Any], name: str
    ) -> tuple[Compiled, Callable[[Sequence[Any]], bool]]:
        """The same for arguments of every size, and what says whether it serves some."""
        if not self.made:
            return self.whole(_nothing), lambda row: True
        code = backend.specialise_all_sizes(self.graph, row, name=name)
        return backend.whole(self, code), code.meets

    def printed(self, name: str, recipe: Recipe) -> Compiled:
        """All values of the first graph, by Python under the names of the recipe."""
        if not self.made:
            return self.whole(_nothing)
        function = printed_function(self.graph, name, recipe.captured.name, recipe.parts.names)
        return self.whole(lambda row: function(*row))


def minimal(graph: fx.Graph, count: int | None = None) -> Minimal:
    """`graph` with the first `count` values that it returns, or all of them."""
    copy, _ = copied_graph(graph)
    inputs = list(copy.find_nodes(op="placeholder"))
    output = copy.output_node()
    returned: Any = output.args[0]
    made: list[fx.Node] = []
    sources: list[Any] = []
    for value in returned[:count]:
        if not isinstance(value, fx.Node):
            sources.append(value)
        elif value in inputs:
            sources.append(ValueSource(True, inputs.index(value)))
        else:
            if value not in made:
                made.append(value)
            sources.append(ValueSource(False, made.index(value)))
    output.args = (tuple(made),)
    copy.eliminate_dead_code()
    return Minimal(copy, tuple(sources))


def _nothing(row: list[Any]) -> Sequence[Any]:
    return ()


def _picking(sources: Sequence[Any], compiled: Compiled) -> Compiled:
    def run(row: list[Any]) -> list[Any]:
        given = tuple(row)  # which the compiled graph may clear
        made = compiled(row)
        return [
            (given if one.is_input else made)[one.place] if isinstance(one, ValueSource) else one
            for one in sources
        ]

    return run
