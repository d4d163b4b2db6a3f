"""A captured program as loops over its rows: what is computed once, what in chunks, and when.

The joint graph of a program, gradients included, is read at two numbers of rows. What grows with
them has rows. Each node is then either computed *whole*, once, or *in chunks*, in a loop over the
rows. What leaves a loop is a sum over rows, or a value whose chunks are put together again; that is
done for what is small, and for outputs. A value that is large and whose rows are mixed with each
other is refused.

A node that needs a sum over rows runs in a later loop than the sum: the mean of a loss divides by
the number of labels that count, so these are counted first. Whatever a loop needs of an earlier one
is computed again, if it was not put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

from torch import Tensor, fx

from pullback.compose.rows.rules import COUNTS, RowKind, is_row_numbers, kind_of
from pullback.errors import ChunkingError
from pullback.graph.cost import bytes_of, is_view, op_name
from pullback.graph.parts import calls
from pullback.graph.values import held_value

SMALL = 64
"""Bytes of a row up to which a value is computed for all rows at once, outside of loops."""


@dataclass(frozen=True, slots=True, eq=False)
class PairedGraph:
    """One graph at two numbers of rows: each node of `whole` with its like in the other."""

    name: str
    whole: fx.Graph
    part: dict[fx.Node, fx.Node]

    def row_dim(self, node: fx.Node) -> int | None:
        """The dimension of a node's value that grows with the number of rows."""
        large, small = held_value(node), held_value(self.part[node])
        if not isinstance(large, Tensor):
            return None
        grown = [d for d, (a, b) in enumerate(zip(large.shape, small.shape, strict=True)) if a != b]
        if len(grown) > 1:
            raise row_refusal(
                self.name, node, f"a tensor of shape {list(large.shape)}, each row with each other"
            )
        return grown[0] if grown else None


def pair(name: str, whole: fx.Graph, part: fx.Graph) -> PairedGraph:
    """Two captures of the program called `name`, which must be the same work."""
    ours, theirs = list(whole.nodes), list(part.nodes)
    same = len(ours) == len(theirs) and all(
        (a.op == b.op and a.target == b.target) or a.op in ("placeholder", "output")
        for a, b in zip(ours, theirs, strict=True)
    )
    if not same:
        raise ChunkingError(
            f"`{name}` must do the same work whatever the number of its rows is",
            got="other ops for a part of the rows than for all of them",
            fix="decide on sizes before the call",
        )
    return PairedGraph(name, whole, dict(zip(ours, theirs, strict=True)))


def row_refusal(name: str, node: fx.Node, got: str) -> ChunkingError:
    """The error for rows that depend on each other."""
    return ChunkingError(
        f"the rows of `{name}` must not depend on each other where they are large",
        at=str(node.meta.get("place", "")),
        got=got,
        fix="choose other rows with `over`, or leave that step out of the program",
    )


@dataclass(eq=False)
class RowLoop:
    """One loop over the rows.

    `inside` are the nodes that it computes, in order; `given` those that it reads from outside, by
    rows where they have some; `sums` what it adds up, and `kept` what it puts together.
    """

    inside: list[fx.Node] = field(default_factory=list)
    given: list[fx.Node] = field(default_factory=list)
    sums: list[fx.Node] = field(default_factory=list)
    kept: list[fx.Node] = field(default_factory=list)


@dataclass(eq=False)
class RowProgram:
    """A graph as loops; `outputs` are those of its outputs that are wanted (None stays None).

    `loops` run one after the other; what is whole runs between them, as soon as it can.
    """

    paired: PairedGraph
    outputs: Sequence[Any]

    def __post_init__(self) -> None:
        self.row_dim: Callable[[fx.Node], int | None] = _remembered(self.paired.row_dim)
        wanted = [one for one in self.outputs if isinstance(one, fx.Node)]
        needed = _ancestors(wanted)
        self.nodes = [node for node in calls(self.paired.whole) if node in needed]
        self.chunked: set[fx.Node] = set()
        self.sums: set[fx.Node] = set()
        self.kept: set[fx.Node] = set(wanted)
        inputs = self.paired.whole.find_nodes(op="placeholder")
        with_rows = [node for node in inputs if self.row_dim(node) is not None]
        self.limit = max(map(bytes_of, with_rows), default=0)
        self.more = max((self._more(node) for node in with_rows[:1]), default=0)
        for node in self.nodes:
            self._place(node)
        self.kept &= self.chunked
        self.loops = self._schedule()

    def _more(self, node: fx.Node) -> int:
        """How many more rows a value has than in the other graph."""
        dim = self.row_dim(node) or 0
        return int(held_value(node).shape[dim] - held_value(self.paired.part[node]).shape[dim])

    # ---- whole, or in chunks ----

    def _place(self, node: fx.Node) -> None:
        """Decide where a node is computed."""
        if node.target is getitem:
            if node.args[0] in self.chunked:
                self.chunked.add(node)
            return
        inside = [one for one in node.all_input_nodes if one in self.chunked]
        has_rows = self._has_rows(node)
        if not inside:
            if not has_rows or self._is_small(node) or is_view(node) or op_name(node) in COUNTS:
                return
            if kind_of(node, self.row_dim) is RowKind.EACH:
                self.chunked.add(node)
            else:
                self._require_room(node, node)
            return
        kind = kind_of(node, self.row_dim)
        if kind is RowKind.EACH:
            self.chunked.add(node)
        elif kind is RowKind.SUM:
            self.sums.add(node)
        else:
            for one in inside:
                self._require_room(one, node)
                self.kept.add(one)
            if has_rows:
                self._require_room(node, node)

    def _has_rows(self, node: fx.Node) -> bool:
        value = held_value(node)
        if isinstance(value, (tuple, list)):
            pairs = zip(value, held_value(self.paired.part[node]), strict=True)
            return any(isinstance(a, Tensor) and a.shape != b.shape for a, b in pairs)
        return self.row_dim(node) is not None

    def _is_small(self, node: fx.Node) -> bool:
        row = bytes_of(node) - bytes_of(self.paired.part[node])
        return self.more > 0 and row <= SMALL * self.more

    def _require_room(self, node: fx.Node, mixing: fx.Node) -> None:
        """Raise unless a value is small enough to be there for all rows at once."""
        if bytes_of(node) > self.limit:
            got = f"`{op_name(mixing)}`, which takes large rows together"
            raise row_refusal(self.paired.name, mixing, got)

    # ---- in which loop ----

    def _schedule(self) -> list[RowLoop]:
        levels = self._levels()
        leaving = [node for node in self.nodes if node in self.sums or node in self.kept]
        last = max((levels[one] - (one in self.sums) for one in leaving), default=-1)
        loop_of = dict.fromkeys(leaving, last)
        loops = []
        for number in range(last, -1, -1):
            while True:
                leaves = [one for one in leaving if loop_of[one] == number]
                loop = self._loop(leaves, loop_of, number)
                early = [one for one in self._behind(loop.given) if loop_of[one] == number]
                if not early:
                    break
                loop_of.update(dict.fromkeys(early, number - 1))
            loops.append(loop)
        return [loop for loop in reversed(loops) if loop.sums or loop.kept]

    def _behind(self, given: Sequence[fx.Node]) -> list[fx.Node]:
        """What must have left a loop for values to be there: sums, and what was put together."""
        found: dict[fx.Node, None] = {}
        seen: set[fx.Node] = set()
        waiting = list(given)
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in self.sums or node in self.kept:
                found[node] = None
            else:
                waiting += node.all_input_nodes
        return list(found)

    def _levels(self) -> dict[fx.Node, int]:
        """For each node, the number of the first loop that it can be in, or stand before."""
        levels: dict[fx.Node, int] = {}
        for node in self.paired.whole.nodes:
            found = 0
            for one in node.all_input_nodes:
                leaves = one in self.chunked and node not in self.chunked
                found = max(found, levels[one] + leaves)
            levels[node] = found
        return levels

    def _loop(
        self, leaving: Sequence[fx.Node], loop_of: dict[fx.Node, int], number: int
    ) -> RowLoop:
        """The loop out of which some sums and values come."""
        loop = RowLoop()
        loop.sums = [one for one in leaving if one in self.sums]
        loop.kept = [one for one in leaving if one in self.kept]
        needed = set(loop.sums)
        waiting = [*loop.sums, *loop.kept]
        given: dict[fx.Node, None] = {}
        while waiting:
            node = waiting.pop()
            is_earlier = node in self.kept and loop_of[node] < number
            if (node not in self.chunked or is_earlier) and node not in loop.sums:
                given[node] = None
                continue
            if node in needed and node not in loop.sums:
                continue
            needed.add(node)
            waiting += [one for one in node.all_input_nodes if one not in needed]
        loop.inside = [node for node in self.nodes if node in needed]
        loop.given = [node for node in self.paired.whole.nodes if node in given]
        return loop

    def local_counts(self, node: fx.Node) -> list[fx.Node]:
        """Those of a node's indices that say "of this row": they count from the chunk's start."""
        if op_name(node) not in ("index", "_unsafe_index", "index_put", "_unsafe_index_put"):
            return []
        indices: Any = node.args[1]
        place = self.row_dim(node.args[0])  # type: ignore[arg-type]
        if place is None or place >= len(indices):
            return []
        found = indices[place]
        return [found] if is_row_numbers(found, self.row_dim) else []


def _remembered(ask: Callable[[fx.Node], int | None]) -> Callable[[fx.Node], int | None]:
    known: dict[fx.Node, int | None] = {}

    def answer(node: fx.Node) -> int | None:
        if node not in known:
            known[node] = ask(node)
        return known[node]

    return answer


def _ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


# ---- one chunk as a graph ----


def chunk_graph(program: RowProgram, loop: RowLoop, part: dict[fx.Node, fx.Node]) -> fx.Graph:
    """What a loop does with one chunk, whose sizes are those of `part`.

    It takes the values of `loop.given`, by rows, and returns for each of `loop.sums` its part of
    the sum (of a product of matrices: the two factors), then the chunks of `loop.kept`.
    """
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for number, node in enumerate(loop.given):
        made[node] = graph.placeholder(f"given_{number}")
        made[node].meta["val"] = held_value(part[node])
    for node in loop.inside:
        if node in loop.sums and is_contracted(node):
            continue
        counts = {one: _copied(graph, one, part[one], {}) for one in program.local_counts(node)}
        made[node] = _copied(graph, node, part[node], made | counts)
    results: list[Any] = []
    for node in loop.sums:
        factors = node.args[:2] if is_contracted(node) else (node,)
        results += [made[one] for one in factors if isinstance(one, fx.Node)]
    results += [made[node] for node in loop.kept]
    graph.output(tuple(results))
    return graph


def is_contracted(node: fx.Node) -> bool:
    """Whether a sum over rows is added up as a product of matrices, factor by factor."""
    return op_name(node) == "mm"


def _copied(
    graph: fx.Graph, whole: fx.Node, part: fx.Node, made: dict[fx.Node, fx.Node]
) -> fx.Node:
    """A node for one chunk: sizes are the chunk's, numbers those of the whole."""
    back = dict(zip(_node_leaves(part), _node_leaves(whole), strict=True))

    def chosen(ours: Any, theirs: Any, *, in_list: bool) -> Any:
        if isinstance(theirs, fx.Node):
            return made[back[theirs]]
        if isinstance(theirs, (list, tuple)):
            pairs = zip(ours, theirs, strict=True)
            return type(theirs)(chosen(a, b, in_list=True) for a, b in pairs)
        return theirs if in_list or op_name(whole) in COUNTS else ours

    args = tuple(chosen(a, b, in_list=False) for a, b in zip(whole.args, part.args, strict=True))
    kwargs = {k: chosen(whole.kwargs[k], v, in_list=False) for k, v in part.kwargs.items()}
    node = graph.call_function(whole.target, args, kwargs)  # type: ignore[arg-type]
    node.meta.update(part.meta)
    return node


def _node_leaves(node: fx.Node) -> Iterator[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), lambda one: found.append(one))
    return iter(found)
