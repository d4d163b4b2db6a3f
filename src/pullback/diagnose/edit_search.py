"""The search for an edit: try candidates on every trial, and take the smallest that is right.

An edit is tried on numbers: what it changes is computed again, the rest is known. Only the one that
is taken is made in a copy of the user's graph.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.tools_common import stable_topological_sort

from pullback.capture.trees import unflatten
from pullback.diagnose.candidate_edits import CandidateEdit, argument_leaves, built, candidate_edits
from pullback.diagnose.gradient_trial import GradientTrial
from pullback.diagnose.scope import DERIVED, NUMBER, NamedValue, Scope
from pullback.diagnose.verifier import Verifier
from pullback.graph.copies import copied_graph, with_graph
from pullback.graph.dead import drop_dead
from pullback.graph.parts import BACKWARD, JointGraph
from pullback.graph.values import Maker

Clock = Callable[[], float]

NEAR_COST = 0.6
"""How much more an edit may cost than the smallest, if it repairs more gradients."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the user's backward that makes a gradient right.

    `graph`, the user's joint graph with the change made, gives the derived gradient.

    Arguments:
        text: What to do, in the user's variables.
        is_small: Whether it changes one thing, and does not return another expression altogether.
        graph: The joint graph of the Function, changed.
    """

    text: str
    is_small: bool = True
    graph: JointGraph | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True, eq=False)
class EditSearch:
    """The search for edits of one backward."""

    scope: Scope
    trials: Sequence[GradientTrial]
    wrong: frozenset[int]
    verifier: Verifier
    deadline: float
    clock: Clock = time.process_time
    _orders: dict[frozenset[fx.Node], list[fx.Node]] = field(default_factory=dict)
    _trial_orders: dict[int, list[int]] = field(default_factory=dict)
    _leaves: dict[fx.Node, tuple[list[Any], Any]] = field(init=False)

    def __post_init__(self) -> None:
        self._leaves = {node: argument_leaves(node) for node in self.scope.hand.joint.graph.nodes}

    def find(self, place: int) -> CandidateEdit | None:
        """The smallest edit that makes the gradient at `place` right, and spoils no other."""
        with _few_threads(self.trials):
            return self._find(place)

    def _find(self, place: int) -> CandidateEdit | None:
        best, most = None, 0
        for candidate in candidate_edits(self.scope, place, self.in_time):
            if best is not None and candidate.cost > best.cost + NEAR_COST:
                break
            if not self.in_time():
                break
            count = len(self.fixes(candidate, place))
            if count > most:
                count = len(self.repaired(candidate, place))
            if count > most:
                best, most = candidate, count
            if most == len(self.wrong):
                break
        return best

    def in_time(self) -> bool:
        """Whether there is time left to search."""
        return self.clock() < self.deadline

    def repaired(self, candidate: CandidateEdit, place: int) -> frozenset[int]:
        """The wrong gradients that a candidate makes right, also on inputs not searched with."""
        fixed = self.fixes(candidate, place)
        if not fixed:
            return fixed
        right = self.verifier.right(make_edited(self.scope, candidate)) & fixed
        return right if place in right else frozenset()

    def fixes(self, candidate: CandidateEdit, place: int) -> frozenset[int]:
        """The wrong gradients that a candidate makes right, if that at `place` is among them."""
        downstream = self.downstream(candidate)
        if not candidate.needs.isdisjoint(downstream):
            return frozenset()
        right = set(self.wrong)
        for number in self._failing_first(place):
            gradients = self.gradients(candidate, number)
            if gradients is None:
                return frozenset()
            for other, gradient in gradients.items():
                if not self.trials[number].accepts(other, gradient):
                    if other == place or other not in self.wrong:
                        return frozenset()
                    right.discard(other)
            right -= {other for other in right if other not in gradients}
        return frozenset(right) if place in right else frozenset()

    def _failing_first(self, place: int) -> list[int]:
        """The trials, those in which the gradient is wrong first."""
        if place not in self._trial_orders:
            is_right = [not trial.is_wrong(place) for trial in self.trials]
            self._trial_orders[place] = sorted(range(len(is_right)), key=is_right.__getitem__)
        return self._trial_orders[place]

    # ---- numbers ----

    def gradients(self, candidate: CandidateEdit, number: int) -> dict[int, Tensor] | None:
        """The gradients that change, in one trial; None if the edit cannot be computed."""
        changed: dict[fx.Node, Any] = {}
        values = ChainMap(changed, self.scope.hand.values[number])
        try:
            with torch.no_grad():
                new = {use: self.value(new, number) for use, new in candidate.changes}
                for node in self.order(candidate):
                    leaves, spec = self._leaves[node]
                    now = [values[leaf] if isinstance(leaf, fx.Node) else leaf for leaf in leaves]
                    filled = [new.get((node, i), leaf) for i, leaf in enumerate(now)]
                    if node.op == "output":
                        end = self.scope.hand.joint.output_count
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

    def value(self, operand: Any, number: int) -> Any:
        """What a new operand is, in one trial."""
        values = self.scope.hand.values[number]
        return built(operand, lambda known: known.values[number], values.__getitem__, _called)

    # ---- the order of what is computed again ----

    def order(self, candidate: CandidateEdit) -> list[fx.Node]:
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

    def downstream(self, candidate: CandidateEdit) -> set[fx.Node]:
        """The nodes whose values an edit may change."""
        return {node for node in self.order(candidate) if node.op != "output"}


@contextmanager
def _few_threads(trials: Sequence[GradientTrial]) -> Iterator[None]:
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


def make_edited(scope: Scope, candidate: CandidateEdit) -> JointGraph:
    """The user's joint graph, with an edit made."""
    joint = scope.hand.joint
    graph, copies = copied_graph(joint.graph)
    builder = _Builder(scope, copies, graph.output_node())
    for (user, place), operand in candidate.changes:
        new = builder.build(operand)
        node = copies[user]
        leaves, spec = argument_leaves(node)
        leaves[place] = new
        node.args, node.kwargs = unflatten(leaves, spec)
    in_order = stable_topological_sort(fx.GraphModule({}, graph)).graph
    return drop_dead(with_graph(joint, in_order))


@dataclass(slots=True, eq=False)
class _Builder:
    """Makes nodes for new operands at the end of a copy of the user's graph."""

    scope: Scope
    copies: dict[fx.Node, fx.Node]
    end: fx.Node
    built: dict[fx.Node, Any] = field(default_factory=dict)

    def build(self, operand: Any) -> Any:
        """The node of a new operand, or the number that it is."""
        return built(operand, self.build_known, self.copies.__getitem__, self.call)

    def build_known(self, known: NamedValue) -> Any:
        """The node of a value within reach."""
        if known.origin == NUMBER:
            return known.values[0]
        if known.made is not None:
            op, inner, args = known.made
            return self.call(op, self.build_known(inner), *args)
        assert known.node is not None
        is_derived = known.origin == DERIVED
        return self.build_derived(known.node) if is_derived else self.copies[known.node]

    def build_derived(self, node: fx.Node) -> Any:
        """A copy of a node of the derived graph, on the user's values where those are equal."""
        known = self.scope.named.get(node)
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


def _called(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs)
