"""Dead code: nodes that nothing returned depends on are dropped.

Random ops stay: without them, those that follow would draw other numbers than in the user's
program. So do ops that change their arguments.
"""

from __future__ import annotations

from torch import fx

from pullback.graph.copies import Source, copied_graph, graph_of, with_graph
from pullback.graph.cost import is_mutating, is_random


def drop_dead(source: Source) -> Source:
    """`source` without the nodes that nothing depends on; every placeholder stays."""
    graph, _ = copied_graph(graph_of(source))
    erase_dead(graph)
    return with_graph(source, graph)


def erase_dead(graph: fx.Graph) -> None:
    """Erase the dead nodes of a graph that the caller owns."""
    for node in reversed(graph.nodes):
        is_unread = node.op == "call_function" and not node.users
        if is_unread and not is_random(node) and not is_mutating(node):
            graph.erase_node(node)
