"""The cut of a joint graph: what forward saves for backward, and what backward computes again.

Forward may save any node that can run before a cotangent is known; backward runs again what else it
needs. The best choice is a minimum cut of a flow network in which each node is an edge from *enter*
to *leave*. On the sink's side, `leave` says "backward has the value" and `enter` says "backward
computes it", so that

- `enter -> leave` is cut when backward has a value it does not compute: it is saved, for its bytes;
- `leave(input) -> enter(node)` is never cut: whoever computes a node has its inputs;
- `twice -> enter` is cut when backward computes what forward computes too, for its flops. `twice`
  is the source for a node that forward runs whatever is saved. For any other node it is a vertex
  of its own, on the source's side when something that needs the node does not run in backward.

All prices are exact integers, so ties are broken by rule and a graph has one cut.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from pullback.errors import InternalError, PolicyError
from pullback.graph.cost import (
    base_of,
    bytes_of,
    flops_of,
    is_matmul_like,
    is_opaque,
    is_random,
    is_view,
    op_of,
)
from pullback.graph.parts import BACKWARD, JointGraph, phase_of

POLICIES = ("auto", "inputs", "everything")


@dataclass(frozen=True, slots=True)
class Cut:
    """What is saved, what runs twice, and what that costs.

    `saved` are tensors and `numbers` are sizes and other plain values, each in graph order. A view
    is never saved: its base is. `recomputed` are the nodes that both forward and backward run.
    `needed` are the positions of the gradients that backward is to compute. Saved bytes are those
    of inputs, of outputs (returned anyway) and of intermediates; `charged_bytes` are the ones that
    nothing else keeps alive, which is what a budget counts.
    """

    saved: tuple[fx.Node, ...]
    numbers: tuple[fx.Node, ...]
    recomputed: tuple[fx.Node, ...]
    needed: tuple[int, ...]
    intermediate_bytes: int
    input_bytes: int
    output_bytes: int
    charged_bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Point:
    """One cut of the trade between memory and work, with its time where that was measured."""

    cut: Cut
    time: float | None = None

    @property
    def bytes(self) -> int:
        """The saved bytes that nothing else keeps alive."""
        return self.cut.charged_bytes

    @property
    def flops(self) -> int:
        """The flops that backward spends a second time."""
        return self.cut.flops


def cut(
    joint: JointGraph,
    policy: str | int = "auto",
    *,
    free: Collection[str | int] = frozenset(),
    needed: Collection[int] | None = None,
) -> Cut:
    """The best cut of `joint` under a policy.

    - `"auto"`: the fewest bytes that need nothing dear to run twice: no matmul-like op, and no
      reduction to a quarter of its input or less;
    - `"inputs"`: run everything again that may be; random and opaque ops never run twice;
    - `"everything"`: run nothing again but views: what eager autograd would keep;
    - a number: the fewest flops whose saved bytes fit into it, to one part in `GRAIN`. Should the
      search outgrow `EFFORT`, the best that it found.

    Arguments:
        joint: a joint graph.
        policy: one of the above.
        free: names or positions of inputs that something else keeps alive (leaves): saving them
            costs nothing. Outputs are returned, so they cost nothing either.
        needed: positions of the gradients that are asked for; None for all of them.
    """
    require_policy(policy)
    problem = _pose(joint, policy, free, needed)
    if isinstance(policy, str):
        return problem.settle(_sure(problem, FEWEST_BYTES).saved)
    best, _ = _search(problem, policy)
    if best is None:
        raise _out_of_reach(policy, _sure(problem, FEWEST_BYTES).bytes)
    return problem.settle(_polished(problem, best).saved)


def frontier(
    joint: JointGraph,
    *,
    free: Collection[str | int] = frozenset(),
    needed: Collection[int] | None = None,
    time: Callable[[Cut], float] | None = None,
) -> tuple[Point, ...]:
    """Every best trade of saved bytes against recomputed flops, from most bytes to fewest.

    No cut has fewer bytes than one of these without more flops, nor fewer flops without more bytes.
    The points of the convex hull come from a sweep of minimum cuts of `bytes + x * flops`, each of
    which proves itself; those above it from a search below each point, which proves that nothing is
    between. Where a search outgrows `EFFORT`, what it found is left out: it is not proved.
    Differences below one part in `GRAIN` do not count.

    `time` measures a cut, in seconds.
    """
    problem = _pose(joint, 0, free, needed)
    choices = (_polished(problem, choice) for choice in _pareto(problem))
    cuts = [problem.settle(choice.saved) for choice in choices]
    best = [each for each in cuts if not any(_beats(other, each) for other in cuts)]
    return tuple(Point(each, time(each) if time else None) for each in best)


def _beats(one: Cut, other: Cut) -> bool:
    """Whether `one` is better in bytes or flops, and no worse in the other."""
    mine, its = ((each.charged_bytes, each.flops) for each in (one, other))
    return mine != its and mine[0] <= its[0] and mine[1] <= its[1]


def ancestors(goals: Iterable[Any], stop: Collection[fx.Node] = ()) -> set[fx.Node]:
    """The nodes that computing `goals` takes, `goals` included; not beyond those in `stop`."""
    found: set[fx.Node] = set()
    pending = [goal for goal in goals if isinstance(goal, fx.Node)]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += () if node in stop else node.all_input_nodes
    return found


def run_in_forward(joint: JointGraph, saved: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes that forward runs when it saves `saved`.

    All that it draws is among them, used or not: without it, later draws would be others.
    """
    drawn = [n for n in joint.graph.nodes if is_random(n) and phase_of(n) != BACKWARD]
    return ancestors([*joint.outputs, *drawn, *saved])


# ---- mistakes of the caller ----


def require_policy(policy: object) -> None:
    """Raise `PolicyError` unless `policy` is a known word or a number of bytes."""
    is_budget = isinstance(policy, int) and not isinstance(policy, bool) and policy >= 0
    if is_budget or (isinstance(policy, str) and policy in POLICIES):
        return
    raise PolicyError(
        "`save` must be the name of a policy or a number of bytes",
        expected='"auto", "inputs", "everything", or a whole number from 0',
        got=repr(policy),
        fix='leave it out, which means "auto"',
    )


def _out_of_reach(budget: int, least: int) -> PolicyError:
    return PolicyError(
        "`save` must leave room for what backward cannot do without",
        expected=f"{least:,} bytes or more",
        got=f"{budget:,} bytes",
        fix=f"save={least}",
    )


def _free_nodes(joint: JointGraph, free: Collection[str | int]) -> set[fx.Node]:
    known: dict[str | int, fx.Node] = dict(enumerate(joint.inputs))
    known |= {node.name: node for node in joint.inputs}
    if unknown := [each for each in free if each not in known]:
        names = ", ".join(node.name for node in joint.inputs)
        raise InternalError("`free` must hold inputs", expected=names, got=f"{unknown}")
    return {known[each] for each in free}


# ---- the problem: which nodes, at which price ----


@dataclass(frozen=True, slots=True)
class _Item:
    """The prices of a node that can run before any cotangent is known."""

    is_savable: bool
    charge: int  # bytes, if saved, that nothing else keeps alive
    alive: int  # bytes, if saved, that are alive anyway
    flops: int | None  # of running it a second time; None: it must not


@dataclass(frozen=True, slots=True)
class _Problem:
    """What there is to decide. Every item is needed by the border, which backward must have."""

    joint: JointGraph
    needed: tuple[int, ...]
    items: dict[fx.Node, _Item]
    border: tuple[fx.Node, ...]
    anyway: frozenset[fx.Node]  # what forward runs whatever is saved
    alive: frozenset[fx.Node]  # what something else keeps alive

    @property
    def radix(self) -> int:
        """More than all bytes: `flops * radix + bytes` puts flops first."""
        return 1 + sum(item.charge for item in self.items.values())

    def repeated(self, saved: Collection[fx.Node]) -> list[fx.Node]:
        """The nodes that run twice, in graph order."""
        forward = run_in_forward(self.joint, saved)
        backward = ancestors(self.border, stop=saved) - set(saved)
        return [n for n in self.items if n in forward and n in backward]

    def used(self, saved: Collection[fx.Node]) -> set[fx.Node]:
        """Those of `saved` that backward uses if all of them are there."""
        return ancestors(self.border, stop=saved).intersection(saved)

    def settle(self, saved: Collection[fx.Node]) -> Cut:
        """The cut that saves `saved`, but for what backward then does not use."""
        used = self.used(saved)
        kept = [node for node in self.items if node in used]
        tensors = [node for node in kept if not is_number(node)]
        inputs = [node for node in tensors if node.op == "placeholder"]
        returned = _bases(self.joint.outputs).difference(inputs)
        repeated = self.repeated(kept)
        total, of_inputs = _sum(tensors), _sum(inputs)
        of_outputs = _sum(node for node in tensors if node in returned)
        return Cut(
            saved=tuple(tensors),
            numbers=tuple(node for node in kept if is_number(node)),
            recomputed=tuple(repeated),
            needed=self.needed,
            intermediate_bytes=total - of_inputs - of_outputs,
            input_bytes=of_inputs,
            output_bytes=of_outputs,
            charged_bytes=_sum(node for node in tensors if node not in self.alive),
            flops=sum(map(flops_of, repeated)),
        )


def _pose(
    joint: JointGraph,
    policy: str | int,
    free: Collection[str | int],
    needed: Collection[int] | None,
) -> _Problem:
    positions = tuple(range(len(joint.gradients)) if needed is None else sorted(needed))
    goals = [joint.gradients[position] for position in positions]
    pinned = _pinned_to_backward(joint, by_phase=policy == "everything")
    users = ancestors(goals) & pinned
    border = {n for user in users for n in user.all_input_nodes} | set(_nodes(goals))
    reach = ancestors(border - pinned)
    nodes = [node for node in joint.graph.nodes if node in reach]
    called = [node for node in nodes if is_opaque(node)]
    alive = frozenset(_free_nodes(joint, free) | _bases(joint.outputs))
    return _Problem(
        joint,
        positions,
        items=_priced(nodes, policy, alive),
        border=tuple(node for node in nodes if node in border),
        anyway=frozenset(nodes if policy == "everything" else run_in_forward(joint, called)),
        alive=alive,
    )


def _pinned_to_backward(joint: JointGraph, *, by_phase: bool) -> set[fx.Node]:
    """The nodes that cannot run in forward.

    They need a cotangent, or something random or opaque that backward does and that therefore stays
    there. With `by_phase`, all that was traced in backward stays there, but for numbers.
    """
    pinned = set(joint.cotangents)
    for node in joint.graph.nodes:
        is_bound = is_unrepeatable(node) or (by_phase and not is_number(node))
        is_own = node.op == "call_function" and phase_of(node) == BACKWARD and is_bound
        if node.op != "output" and (is_own or not pinned.isdisjoint(node.all_input_nodes)):
            pinned.add(node)
    return pinned


def _priced(
    nodes: Iterable[fx.Node], policy: str | int, alive: Collection[fx.Node]
) -> dict[fx.Node, _Item]:
    items: dict[fx.Node, _Item] = {}
    fated: set[fx.Node] = set()  # what comes of random and opaque ops
    for node in nodes:
        if is_unrepeatable(node) or not fated.isdisjoint(node.all_input_nodes):
            fated.add(node)
        is_input = node.op == "placeholder"
        is_bound = policy == "inputs" and not (is_input or is_number(node) or node in fated)
        is_free = node in alive or (policy == "inputs" and is_input)
        size = bytes_of(node) if is_savable(node) else 0
        items[node] = _Item(
            is_savable(node) and not is_bound,
            charge=0 if is_free else size,
            alive=size if is_free else 0,
            flops=None if is_input or _runs_once(node, policy) else flops_of(node),
        )
    return items


def _runs_once(node: fx.Node, policy: str | int) -> bool:
    """Whether `policy` forbids to run `node` a second time."""
    if policy == "everything":
        return not (is_number(node) or is_view(node))
    is_dear = policy == "auto" and (is_matmul_like(node) or _shrinks(node))
    return is_dear or is_unrepeatable(node)


# ---- the network, and what it chooses ----

# What a choice minimises, first things first: factors of (charged bytes, bytes alive, flops).
Tiers = tuple[tuple[int, int, int], ...]
FEWEST_BYTES: Tiers = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
BYTES_THEN_FLOPS: Tiers = ((1, 0, 0), (0, 0, 1), (0, 1, 0))
FLOPS_THEN_BYTES: Tiers = ((0, 0, 1), (1, 0, 0), (0, 1, 0))

_SOURCE, _SINK = 0, 1
_NOTHING: frozenset[fx.Node] = frozenset()


@dataclass(frozen=True, slots=True)
class _Choice:
    """What to save, and what that costs; `work` is flops, then bytes, in one number."""

    saved: frozenset[fx.Node]
    bytes: int
    work: int


class _Vertices(NamedTuple):
    """The three vertices of a node; numbers, because sets of those have one order everywhere."""

    enter: int
    leave: int
    twice: int


def _sure(problem: _Problem, tiers: Tiers) -> _Choice:
    """The best choice of all."""
    choice = _choose(problem, tiers)
    if choice is None:
        raise InternalError(
            "what backward needs must follow from tensors that can be saved",
            got=", ".join(node.name for node in problem.border),
        )
    return choice


def _choose(
    problem: _Problem,
    tiers: Tiers,
    must: frozenset[fx.Node] = _NOTHING,
    never: frozenset[fx.Node] = _NOTHING,
) -> _Choice | None:
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
    return _measured(problem, cut | must)


def _measured(problem: _Problem, saved: Collection[fx.Node]) -> _Choice:
    charge = sum(problem.items[node].charge for node in saved)
    flops = sum(problem.items[node].flops or 0 for node in problem.repeated(saved))
    return _Choice(frozenset(saved), charge, flops * problem.radix + charge)


def _networkx() -> Any:
    import networkx  # type: ignore[import-untyped]  # here: `import pullback` must not wait for it

    return networkx


def _network(
    problem: _Problem,
    prices: Iterable[tuple[int, int]],
    must: frozenset[fx.Node],
    never: frozenset[fx.Node],
) -> Any:
    network = _networkx().DiGraph()
    network.add_nodes_from((_SOURCE, _SINK))
    for tail, head, capacity in _edges(problem, prices, must, never):
        network.add_edge(tail, head, **({} if capacity is None else {"capacity": capacity}))
    return network


def _vertices(problem: _Problem) -> dict[fx.Node, _Vertices]:
    at = {}
    for index, node in enumerate(problem.items):
        enter = 2 + 3 * index
        is_sure = node in problem.anyway or node.op == "placeholder"
        at[node] = _Vertices(enter, enter + 1, _SOURCE if is_sure else enter + 2)
    return at


def _edges(
    problem: _Problem,
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


def _prices(problem: _Problem, tiers: Tiers) -> list[tuple[int, int]]:
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


# ---- trading bytes for flops ----

EFFORT = 20_000
"""How many networks one search may solve, times the number of their items: some seconds."""

GRAIN = 10_000
"""A difference in bytes or flops below one part in this many does not count."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """Which sums some numbers can have: multiples of `unit`, each with up to `crumbs` more."""

    unit: int
    crumbs: int

    def floor(self, number: int) -> int:
        """The largest sum up to `number`, or a bound of it."""
        beyond = number % self.unit - self.crumbs
        return number - max(0, beyond)

    def ceil(self, number: int) -> int:
        """The smallest sum from `number` on, or a bound of it."""
        rest = number % self.unit
        return number if rest <= self.crumbs else number + self.unit - rest


def _grid(numbers: Collection[int]) -> _Grid:
    least = max(numbers, default=0) // GRAIN
    unit = math.gcd(*(number for number in numbers if number > least)) or 1
    return _Grid(unit, sum(number for number in numbers if number <= least))


def _charges(problem: _Problem) -> _Grid:
    return _grid([item.charge for item in problem.items.values()])


def _pareto(problem: _Problem) -> Iterator[_Choice]:
    """Every choice that no other beats in bytes and flops, where proved, most bytes first."""
    here, last = _sure(problem, FLOPS_THEN_BYTES), _sure(problem, BYTES_THEN_FLOPS)
    corners = [here, *_corners(problem, here, last), last]
    edges = [_across(problem, left, right) for left, right in itertools.pairwise(corners)]
    known = dict(itertools.chain.from_iterable(_walk(problem, edge) for edge in edges))
    grid, step = _charges(problem), max(1, here.bytes // GRAIN)
    yield here
    while here.bytes - step >= last.bytes:
        budget = grid.floor(here.bytes - step)
        on_hull = max((charge for charge in known if charge <= budget), default=-1)
        if budget - on_hull < step:
            here = _measured(problem, known[on_hull])
        else:
            best, is_proved = _search(problem, budget)
            below = next(corner for corner in corners if corner.bytes <= budget)
            here = best if best and is_proved else below
        yield here


def _corners(problem: _Problem, left: _Choice, right: _Choice) -> list[_Choice]:
    """The corners of the convex hull that lie strictly between two of them."""
    middle = _sure(problem, _across(problem, left, right))
    if not _is_below(middle, left, right):
        return []
    return [*_corners(problem, left, middle), middle, *_corners(problem, middle, right)]


def _walk(
    problem: _Problem,
    tiers: Tiers,
    must: frozenset[fx.Node] = _NOTHING,
    never: frozenset[fx.Node] = _NOTHING,
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


def _across(problem: _Problem, left: _Choice, right: _Choice) -> Tiers:
    """Tiers for which the line through two choices is level: a best choice is on it or below."""
    rise, run = right.work - left.work, left.bytes - right.bytes
    return ((rise + run, 0, run * problem.radix), (1, 0, 0), (0, 1, 0))


def _is_below(middle: _Choice, left: _Choice, right: _Choice) -> bool:
    rise, run = right.work - left.work, left.bytes - right.bytes
    return rise * (middle.bytes - left.bytes) + run * (middle.work - left.work) < 0


def _search(problem: _Problem, budget: int) -> tuple[_Choice | None, bool]:
    """The choice of least work within `budget`, None if there is none; and whether that is proved.

    Branch and bound: a part of the choices is given by what must and what must never be saved, and
    bounded from below by the edge of its convex hull that crosses the budget.
    """
    budget = _charges(problem).floor(budget)
    best: _Choice | None = None
    allowance = max(1, EFFORT // max(1, len(problem.items)))
    parts = [(0, 0, _NOTHING, _NOTHING)]
    tickets = itertools.count(-1, -1)  # among equal bounds the newest goes first: depth first
    while parts:
        bound, _, must, never = heapq.heappop(parts)
        if best and bound >= best.work - best.work // GRAIN:
            return best, True
        if allowance <= 0:
            return best, False
        ends, solved = _bracket(problem, budget, must, never)
        allowance -= solved
        if not ends:
            continue
        found = [ends[0]] if best is None else [ends[0], best]
        if len(ends) == 2:
            bound = _bound(problem, budget, *ends)
            node = _dividing(problem, *ends)
            walk = _walk(problem, _across(problem, ends[1], ends[0]), must, never)
            fits = [(charge, saved) for charge, saved in walk if charge <= budget]
            found += [_measured(problem, max(fits, key=lambda fit: fit[0])[1])] if fits else []
            heapq.heappush(parts, (bound, next(tickets), must, never | {node}))
            heapq.heappush(parts, (bound, next(tickets), must | {node}, never))
        best = min(found, key=lambda choice: choice.work)
    return best, True


def _polished(problem: _Problem, choice: _Choice) -> _Choice:
    """The choice of the same charged nodes that is best in all that costs no bytes."""
    charged = {node for node, item in problem.items.items() if item.charge}
    must, never = charged & choice.saved, charged - choice.saved
    best = _choose(problem, FLOPS_THEN_BYTES, frozenset(must), frozenset(never))
    return best or choice


def _bracket(
    problem: _Problem, budget: int, must: frozenset[fx.Node], never: frozenset[fx.Node]
) -> tuple[tuple[_Choice, ...], int]:
    """The ends of the hull's edge that crosses the budget, the fitting one first, and the effort.

    Nothing if nothing fits; one choice if it is the best of all and fits.
    """
    fitting = _choose(problem, BYTES_THEN_FLOPS, must, never)
    if fitting is None or fitting.bytes > budget:
        return (), 1
    over, solved = _choose(problem, FLOPS_THEN_BYTES, must, never), 2
    while over is not None and over.bytes > budget:
        middle = _choose(problem, _across(problem, over, fitting), must, never)
        solved += 1
        if middle is None or not _is_below(middle, over, fitting):
            return (fitting, over), solved
        fitting, over = (middle, over) if middle.bytes <= budget else (fitting, middle)
    return (over or fitting,), solved


def _bound(problem: _Problem, budget: int, fitting: _Choice, over: _Choice) -> int:
    """The least work that a choice between two ends of the hull can have within the budget."""
    rise, run = fitting.work - over.work, over.bytes - fitting.bytes
    work = fitting.work - rise * (budget - fitting.bytes) // run  # rounded up
    flops, charge = divmod(work, problem.radix)
    flops += charge > budget
    grid = _grid([item.flops or 0 for item in problem.items.values()])
    is_exact = charge <= budget and grid.ceil(flops) == flops
    return grid.ceil(flops) * problem.radix + (charge if is_exact else 0)


def _dividing(problem: _Problem, fitting: _Choice, over: _Choice) -> fx.Node:
    """The largest node that one of two choices saves and the other does not."""
    differing = fitting.saved ^ over.saved
    charges = {n: item.charge for n, item in problem.items.items() if n in differing}
    return max(charges, key=charges.__getitem__)


# ---- nodes ----


def _nodes(values: Iterable[Any]) -> list[fx.Node]:
    return [value for value in values if isinstance(value, fx.Node)]


def _bases(values: Iterable[Any]) -> set[fx.Node]:
    return set(map(base_of, _nodes(values)))


def _sum(nodes: Iterable[fx.Node]) -> int:
    return sum(map(bytes_of, nodes))


def is_unrepeatable(node: fx.Node) -> bool:
    """Whether running `node` twice may give two results: a random or an opaque op."""
    return is_random(node) or is_opaque(node)


def is_number(node: fx.Node) -> bool:
    """Whether `node` holds no tensor but a size or another plain value."""
    return not isinstance(node.meta.get("val"), torch.Tensor | tuple | list)


def is_savable(node: fx.Node) -> bool:
    """Whether `node` can be handed over as it is: a number, or a tensor that is no view."""
    return not (is_view(node) or isinstance(node.meta.get("val"), tuple | list))


def _shrinks(node: fx.Node) -> bool:
    """Whether `node` is a reduction to a quarter of its input or less."""
    op = op_of(node)
    if op is None or torch.Tag.reduction not in op.tags:
        return False
    return 4 * bytes_of(node) <= max(map(bytes_of, node.all_input_nodes))
