"""The best choice of what to save, as a minimum cut of a flow network.

Each node is an edge from *enter* to *leave*. On the sink's side, `leave` says "backward has the
value" and `enter` says "backward computes it", so that

- `enter -> leave` is cut when backward has a value it does not compute: it is saved, for its bytes;
- `leave(input) -> enter(node)` is never cut: where a node is computed its inputs are there;
- `twice -> enter` is cut when backward computes what forward computes too, for its flops. `twice`
  is the source for a node that forward runs whatever is saved. For any other node it is a vertex
  of its own, on the source's side when something that needs the node does not run in backward.

All prices are exact integers, so ties are broken by rule and a graph has one cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import fx

from pullback.errors import InternalError
from pullback.graph.cut_problem import Problem

# What a choice minimises, first things first: factors of (charged bytes, bytes alive, flops).
Tiers = tuple[tuple[int, int, int], ...]
FEWEST_BYTES: Tiers = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
BYTES_THEN_FLOPS: Tiers = ((1, 0, 0), (0, 0, 1), (0, 1, 0))
FLOPS_THEN_BYTES: Tiers = ((0, 0, 1), (1, 0, 0), (0, 1, 0))

_SOURCE, _SINK = 0, 1
NOTHING: frozenset[fx.Node] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """What to save, and what that costs; `work` is flops, then bytes, in one number."""

    saved: frozenset[fx.Node]
    bytes: int
    work: int


class _Vertices(NamedTuple):
    """The three vertices of a node; numbers, because sets of those have one order everywhere."""

    enter: int
    leave: int
    twice: int


def sure(problem: Problem, tiers: Tiers) -> Choice:
    """The best choice of all."""
    choice = best_choice(problem, tiers)
    if choice is None:
        raise InternalError(
            "what backward needs must follow from tensors that can be saved",
            got=", ".join(node.name for node in problem.border),
        )
    return choice


def best_choice(
    problem: Problem,
    tiers: Tiers,
    must: frozenset[fx.Node] = NOTHING,
    never: frozenset[fx.Node] = NOTHING,
) -> Choice | None:
    """The best choice that saves all of `must` and none of `never`, or None if there is none.

    Among equals: the one with the fewest nodes saved, then the fewest in backward.
    """
    networkx, at = _networkx(), _vertices(problem)
    network = _network(problem, _prices(problem, tiers), must, never)
    try:
        _, (_, sinks) = networkx.minimum_cut(network, _SOURCE, _SINK)
    except networkx.NetworkXUnbounded:
        return None
    cut = {node for node, v in at.items() if v.enter not in sinks and v.leave in sinks}
    return measured(problem, cut | must)


def measured(problem: Problem, saved: Collection[fx.Node]) -> Choice:
    """The choice that saves `saved`, with what it costs."""
    charge = sum(problem.items[node].charge for node in saved)
    flops = sum(problem.items[node].flops or 0 for node in problem.repeated(saved))
    return Choice(frozenset(saved), charge, flops * problem.radix + charge)


def walk(
    problem: Problem,
    tiers: Tiers,
    must: frozenset[fx.Node] = NOTHING,
    never: frozenset[fx.Node] = NOTHING,
) -> Iterator[tuple[int, set[fx.Node]]]:
    """Choices that are equally good by the first tier, from one best to the other: bytes, nodes.

    All minimum cuts follow from one maximum flow: their source's sides are the sets that no open
    edge leaves. Adding strong components one by one, successors first, walks through such sets.
    """
    networkx, at = _networkx(), _vertices(problem)
    (charges, _, flops), *_ = tiers
    prices = [(charges * i.charge, flops * (i.flops or 0)) for i in problem.items.values()]
    network = _network(problem, prices, must, never)
    flow = networkx.algorithms.flow.preflow_push(network, _SOURCE, _SINK)
    opened = networkx.DiGraph()
    opened.add_nodes_from((_SOURCE, _SINK))
    edges = flow.edges(data=True)
    opened.add_edges_from((a, b) for a, b, edge in edges if edge["flow"] < edge["capacity"])
    side = networkx.descendants(opened, _SOURCE) | {_SOURCE}
    sinks = networkx.ancestors(opened, _SINK) | {_SINK}
    for component in networkx.strongly_connected_components(opened):
        if sinks.isdisjoint(component):
            side |= component
            cut = {node for node, v in at.items() if v.enter in side and v.leave not in side}
            yield sum(problem.items[node].charge for node in cut | must), cut | must


# ---- the network ----


def _networkx() -> Any:
    import networkx  # type: ignore[import-untyped]  # here: `import pullback` must not wait for it

    return networkx


def _network(
    problem: Problem,
    prices: Iterable[tuple[int, int]],
    must: frozenset[fx.Node],
    never: frozenset[fx.Node],
) -> Any:
    network = _networkx().DiGraph()
    network.add_nodes_from((_SOURCE, _SINK))
    for tail, head, capacity in _edges(problem, prices, must, never):
        network.add_edge(tail, head, **({} if capacity is None else {"capacity": capacity}))
    return network


def _vertices(problem: Problem) -> dict[fx.Node, _Vertices]:
    at = {}
    for index, node in enumerate(problem.items):
        enter = 2 + 3 * index
        is_sure = node in problem.anyway or node.op == "placeholder"
        at[node] = _Vertices(enter, enter + 1, _SOURCE if is_sure else enter + 2)
    return at


def _edges(
    problem: Problem,
    prices: Iterable[tuple[int, int]],
    must: frozenset[fx.Node],
    never: frozenset[fx.Node],
) -> Iterator[tuple[int, int, int | None]]:
    """Tail, head and capacity of every edge; None is without limit."""
    at = _vertices(problem)
    for (node, item), (save, repeat) in zip(problem.items.items(), prices, strict=True):
        enter, leave, twice = at[node]
        if node in must:
            yield _SOURCE, enter, None
        else:
            yield enter, leave, save if item.is_savable and node not in never else None
            yield twice, enter, None if item.flops is None else repeat
        for user in (at[user] for user in node.users if user in at):
            yield leave, user.enter, None
            if twice != _SOURCE:
                yield user.enter, twice, None
                yield user.twice, twice, None
    for node in problem.border:
        yield at[node].leave, _SINK, None


def _prices(problem: Problem, tiers: Tiers) -> list[tuple[int, int]]:
    """What it costs to save and to repeat each item: whole numbers, in which a tier is a digit."""
    rows = []
    for node, item in problem.items.items():
        save = [c * item.charge + a * item.alive for c, a, _ in tiers]
        repeat = [f * (item.flops or 0) for _, _, f in tiers]
        # The last digit counts nodes; one that forward runs only to save it counts twice.
        rows.append(([*save, 1 if node in problem.anyway else 2], [*repeat, 0]))
    columns = zip(*(digits for row in rows for digits in row), strict=True)
    bases = [1 + sum(column) for column in columns]
    return [(_number(save, bases), _number(repeat, bases)) for save, repeat in rows]


def _number(digits: Iterable[int], bases: Iterable[int]) -> int:
    """The number of these digits, each below its base, the highest first."""
    number = 0
    for digit, base in zip(digits, bases, strict=True):
        number = number * base + digit
    return number
