"""What a page of a graph shows, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import networkx as nx  # type: ignore[import-untyped]

INPUT, COTANGENT, FORWARD, BACKWARD = "input", "cotangent", "forward", "backward"
WIDE, HIGH = 150, 70  # of the room that a node has, where no layout is asked of the browser


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One value of the graph, and the op that computes it.

    `unit` is the number of the call of the user's that it comes from. `saved` says why it is kept
    for backward, and is empty where it is not; `again` whether backward computes it again;
    `returns` what of the function's results it is.
    """

    name: str
    kind: str
    op: str = ""
    unit: int | None = None
    place: str = ""
    shape: str = ""
    bytes: int = 0
    flops: int = 0
    seconds: float | None = None
    saved: str = ""
    again: bool = False
    returns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """A graph: nodes in an order that runs, and edges by their numbers.

    `units` are the names of the user's calls, `groups` the numbers of units that share a node.
    `facts` are what is said of the whole, label by label.
    """

    name: str
    nodes: tuple[DrawnNode, ...]
    edges: tuple[tuple[int, int], ...]
    units: tuple[str, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    facts: dict[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The graph as JSON has it, each node with a place to stand."""
        nodes = [asdict(node) for node in self.nodes]
        for node, (x, y) in zip(nodes, self._places(), strict=True):
            node["x"], node["y"] = x, y
        return {
            "name": self.name,
            "nodes": nodes,
            "edges": [list(edge) for edge in self.edges],
            "units": list(self.units),
            "groups": [list(group) for group in self.groups],
            "facts": dict(self.facts),
        }

    def _places(self) -> list[tuple[int, int]]:
        """A place for each node: in rows by how far it is from the inputs, beside what it reads."""
        graph: Any = nx.DiGraph(self.edges)
        graph.add_nodes_from(range(len(self.nodes)))
        across: dict[int, float] = {}
        places = [(0, 0)] * len(self.nodes)
        for level, row in enumerate(nx.topological_generations(graph)):
            order = sorted(row, key=lambda n: (_mean([across[m] for m in graph.pred[n]]), n))
            for column, node in enumerate(order):
                across[node] = column - (len(order) - 1) / 2
                places[node] = round(WIDE * across[node]), HIGH * level
        return places


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
