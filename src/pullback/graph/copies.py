"""Copies of graphs: every pass works on one, so that the caller's graph stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from torch import fx

from pullback.graph.parts import JointGraph

Source = TypeVar("Source", fx.Graph, JointGraph)
"""What a pass takes and gives: a joint graph, or a plain graph of the same form."""


def copied_graph(
    graph: fx.Graph, names: Mapping[fx.Node, str] | None = None
) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy of `graph`, and the new node of each old one.

    Nodes keep their names and a copy of their `meta`. `names` renames some of them.
    """
    new, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    wanted = names or {}
    for node in graph.nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda old: copies[old])
        copy = new.create_node(node.op, node.target, args, kwargs, name=wanted.get(node, node.name))
        copy.meta = dict(node.meta)
        copies[node] = copy
    return new, copies


def graph_returning(graph: fx.Graph, choose: Callable[[Any], Iterable[Any]]) -> fx.Graph:
    """A copy of `graph` that returns what `choose` takes of what it returns."""
    copy, _ = copied_graph(graph)
    output = copy.output_node()
    output.args = (tuple(choose(output.args[0])),)
    return copy


def graph_of(source: fx.Graph | JointGraph) -> fx.Graph:
    """The graph itself."""
    return source.graph if isinstance(source, JointGraph) else source


def output_count_of(source: fx.Graph | JointGraph) -> int | None:
    """How many of the returned values are outputs; None for all of them."""
    return source.output_count if isinstance(source, JointGraph) else None


def with_graph(source: Source, graph: fx.Graph) -> Source:
    """`source` with `graph` in the place of its own."""
    return replace(source, graph=graph) if isinstance(source, JointGraph) else graph
