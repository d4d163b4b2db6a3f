"""Mend a hand-written backward: try edits on every trial, and take the smallest that is right.

An edit is tried on numbers: what it changes is computed again, the rest is known. Only the one that
is taken is made in a copy of the user's graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.trees import unflatten
from pullback.diagnose.edits import Candidate, Formula, candidates, leaves_of
from pullback.diagnose.scope import DERIVED, NUMBER, Known, Scope
from pullback.diagnose.trial import Trial
from pullback.diagnose.verified import Verifier
from pullback.graph.copies import copied_graph, with_graph
from pullback.graph.dead import drop_dead
from pullback.graph.parts import BACKWARD, JointGraph, calls
from pullback.graph.values import Maker
from pullback.judge.tolerances import Measure

Clock = Callable[[], float]

NEAR = 0.6
"""How much more an edit may cost than the smallest, if it mends more gradients."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the user's backward that makes a gradient right.

    Law: `graph`, which is the user's joint graph with the change made, gives the derived gradient.

    Arguments:
        text: What to do, in the user's variables.
        is_small: Whether it changes one thing, and does not return something else altogether.
        graph: The joint graph of the Function, changed.
    """

    text: str
    is_small: bool = True
    graph: JointGraph | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True, eq=False)
class Mender:
    """The search for edits of one backward."""

    scope: Scope
    trials: Sequence[Trial]
    wrong: frozenset[int]
    verifier: Verifier
    deadline: float
    clock: Clock = time.process_time
    _orders: dict[frozenset[fx.Node], list[fx.Node]] = field(default_factory=dict)
    _leaves: dict[fx.Node, tuple[list[Any], Any]] = field(default_factory=dict)
    _measures: dict[tuple[int, int], Measure] = field(default_factory=dict)
    _tellings: dict[int, list[int]] = field(default_factory=dict)

    def mend(self, place: int) -> Candidate | None:
        """The smallest edit that makes the gradient at `place` right, and spoils no other."""
        with _few_threads(self.trials):
            return self._mend(place)

    def _mend(self, place: int) -> Candidate | None:
        best, most = None, 0
        for candidate in candidates(self.scope, place, self.in_time):
            if best is not None and candidate.cost > best.cost + NEAR:
                break
            if not self.in_time():
                break
            count = len(self.fixes(candidate, place))
            if count > most:
                count = len(self.mended(candidate, place))
            if count > most:
                best, most = candidate, count
            if most == len(self.wrong):
                break
        return best

    def in_time(self) -> bool:
        """Whether there is time left to search."""
        return self.clock() < self.deadline

    def mended(self, candidate: Candidate, place: int) -> frozenset[int]:
        """The wrong gradients that a candidate makes right, also on inputs not searched with."""
        fixed = self.fixes(candidate, place)
        if not fixed:
            return fixed
        right = self.verifier.right(make_edited(self.scope, candidate)) & fixed
        return right if place in right else frozenset()

    def fixes(self, candidate: Candidate, place: int) -> frozenset[int]:
        """The wrong gradients that a candidate makes right, if that at `place` is among them."""
        downstream = self.downstream(candidate)
        if not candidate.needs.isdisjoint(downstream):
            return frozenset()
        right = set(self.wrong)
        for number in self._telling_first(place):
            gradients = self.gradients(candidate, number)
            if gradients is None:
                return frozenset()
            for other, gradient in gradients.items():
                if not self.is_right(number, other, gradient):
                    if other == place or other not in self.wrong:
                        return frozenset()
                    right.discard(other)
            right -= {other for other in right if other not in gradients}
        return frozenset(right) if place in right else frozenset()

    def is_right(self, number: int, place: int, gradient: Any) -> bool:
        """Whether a gradient is right in one trial; None is as good as zeros."""
        trial = self.trials[number]
        if gradient is None or trial.expected[place] is None:
            return trial.agrees(trial.expected[place], gradient)
        if (number, place) not in self._measures:
            self._measures[number, place] = trial.measure(trial.pair(place)[0])
        return self._measures[number, place].fits(gradient)

    def _telling_first(self, place: int) -> list[int]:
        """The trials, those in which the gradient is wrong first."""
        if place not in self._tellings:
            is_right = [not trial.is_wrong(place) for trial in self.trials]
            self._tellings[place] = sorted(range(len(is_right)), key=is_right.__getitem__)
        return self._tellings[place]

    # ---- numbers ----

    def gradients(self, candidate: Candidate, number: int) -> dict[int, Tensor] | None:
        """The gradients that change, in one trial; None if the edit cannot be computed."""
        values = self.scope.hand.values[number]
        joint = self.scope.hand.joint
        try:
            with torch.no_grad():
                new = {use: self.value(what, number) for use, what in candidate.changes}
                changed: dict[fx.Node, Any] = {}
                for node in self.order(candidate):
                    leaves, spec = self.leaves(node)
                    filled = [
                        new[node, i] if (node, i) in new else self.look(leaf, changed, values)
                        for i, leaf in enumerate(leaves)
                    ]
                    if node.op == "output":
                        end = joint.output_count
                        pairs = zip(leaves[end:], filled[end:], strict=True)
                        return {
                            place: after
                            for place, (leaf, after) in enumerate(pairs)
                            if leaf in changed or (node, end + place) in new
                        }
                    args, kwargs = unflatten(filled, spec)
                    changed[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        except (RuntimeError, TypeError, ValueError, IndexError, ZeroDivisionError):
            return None
        return {}

    @staticmethod
    def look(leaf: Any, changed: dict[fx.Node, Any], values: dict[fx.Node, Any]) -> Any:
        """The value of a leaf: changed, known, or itself."""
        if not isinstance(leaf, fx.Node):
            return leaf
        return changed[leaf] if leaf in changed else values[leaf]

    def value(self, what: Any, number: int) -> Any:
        """What a new operand is, in one trial."""
        if isinstance(what, Known):
            return what.values[number]
        if isinstance(what, fx.Node):
            return self.scope.hand.values[number][what]
        if isinstance(what, Formula):
            args = self.value(list(what.args), number)
            return what.op(*args, **{key: self.value(v, number) for key, v in what.kwargs})
        if isinstance(what, (list, tuple)):
            return [self.value(item, number) for item in what]
        return what

    # ---- the order of what is computed again ----

    def leaves(self, node: fx.Node) -> tuple[list[Any], Any]:
        """The leaves of the arguments of a node, looked up once."""
        if node not in self._leaves:
            self._leaves[node] = leaves_of(node)
        return self._leaves[node]

    def order(self, candidate: Candidate) -> list[fx.Node]:
        """The nodes that an edit changes, in an order that runs; the output comes last."""
        key = frozenset(candidate.users)
        if key not in self._orders:
            reached = set(key)
            found = []
            for node in self.scope.hand.joint.graph.nodes:
                if node in reached:
                    found.append(node)
                    reached.update(node.users)
            self._orders[key] = found
        return self._orders[key]

    def downstream(self, candidate: Candidate) -> set[fx.Node]:
        """The nodes whose values an edit may change."""
        return {node for node in self.order(candidate) if node.op != "output"}


@contextmanager
def _few_threads(trials: Sequence[Trial]) -> Iterator[None]:
    """One thread while small tensors are computed with: several mostly wait for each other.

    A convolution of 150 numbers took 20 ms on a busy machine, and 0.2 ms on one thread.
    """
    largest = max((t.numel() for trial in trials for t in trial.tensors), default=0)
    before = torch.get_num_threads()
    torch.set_num_threads(1 if largest <= 10_000 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- the edit in a graph ----


def make_edited(scope: Scope, candidate: Candidate) -> JointGraph:
    """The user's joint graph, with an edit made."""
    joint = scope.hand.joint
    graph, twins = copied_graph(joint.graph)
    builder = _Builder(scope, twins, graph.output_node())
    for (user, place), what in candidate.changes:
        new = builder.build(what)
        twin = twins[user]
        leaves, spec = leaves_of(twin)
        leaves[place] = new
        twin.args, twin.kwargs = unflatten(leaves, spec)
    return drop_dead(with_graph(joint, _sorted(graph)))


@dataclass(slots=True, eq=False)
class _Builder:
    """Makes nodes for new operands at the end of a copy of the user's graph."""

    scope: Scope
    twins: dict[fx.Node, fx.Node]
    end: fx.Node
    built: dict[fx.Node, Any] = field(default_factory=dict)

    def build(self, what: Any) -> Any:
        """The node of a new operand, or the number that it is."""
        if isinstance(what, Known):
            return self.build_known(what)
        if isinstance(what, fx.Node):
            return self.twins[what]
        if isinstance(what, Formula):
            kwargs = {key: self.build(value) for key, value in what.kwargs}
            return self.call(what.op, *map(self.build, what.args), **kwargs)
        if isinstance(what, (list, tuple)):
            return [self.build(item) for item in what]
        return what

    def build_known(self, known: Known) -> Any:
        """The node of a value within reach."""
        if known.origin == NUMBER:
            return known.values[0]
        if known.made is not None:
            op, inner, args = known.made
            return self.call(op, self.build_known(inner), *args)
        assert known.node is not None
        return self.build_derived(known.node) if known.origin == DERIVED else self.twins[known.node]

    def build_derived(self, node: fx.Node) -> Any:
        """A copy of a node of the derived graph, on the user's values where those are equal."""
        known = self.scope.twins.get(node)
        if known is not None and known.node is not node:
            return self.build_known(known)
        if node not in self.built:
            args, kwargs = fx.map_arg((node.args, node.kwargs), self.build_derived)
            self.built[node] = self.call(node.target, *args, **kwargs)
        return self.built[node]

    def call(self, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A new node of the backward."""
        node = Maker(self.end).call(op, *args, **kwargs).node
        node.meta |= {"phase": BACKWARD, "unit": None, "place": ""}
        return node


def _sorted(graph: fx.Graph) -> fx.Graph:
    """A copy of `graph` in an order that runs, near the one it has."""
    new, twins = fx.Graph(), dict[fx.Node, fx.Node]()

    def visit(node: fx.Node) -> None:
        if node in twins:
            return
        for arg in node.all_input_nodes:
            visit(arg)
        twins[node] = new.node_copy(node, twins.__getitem__)
        twins[node].meta = dict(node.meta)

    for node in [*graph.find_nodes(op="placeholder"), *calls(graph), graph.output_node()]:
        visit(node)
    return new
