"""A joint graph and a cut of it, as a forward graph and a backward graph.

Running forward, then backward on what forward saved and on the cotangents, gives bit for bit
what running the joint graph gives, when neither draws random numbers that the other also draws.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from pullback.errors import InternalError
from pullback.graph.cost import is_random
from pullback.graph.cut_problem import Cut, ancestors, is_unrepeatable, run_in_forward
from pullback.graph.parts import BACKWARD, JointGraph, phase_of


def split(joint: JointGraph, cut: Cut) -> tuple[fx.Graph, fx.Graph]:
    """The forward graph and the backward graph of `joint` that `cut` makes.

    Forward takes the inputs and returns the outputs, the saved tensors, the saved numbers. Backward
    takes these tensors and numbers, then the cotangents, and returns one value per gradient of
    `joint`, with `None` for those that the cut does not need. Each holds what it uses and no more,
    but for placeholders. What backward computes again stands just before its first use, so that it
    is in memory no longer than it must.
    """
    forward, backward = _forward(joint, cut), _backward(joint, cut)
    _require_no_repeated_draw(forward, backward)
    return forward, backward


def _forward(joint: JointGraph, cut: Cut) -> fx.Graph:
    kept = (*cut.saved, *cut.numbers)
    copy = _Copy()
    for node in joint.inputs:
        copy.place(node)
    copy.extend(joint.graph.nodes, run_in_forward(joint, kept))
    return copy.finish((*joint.outputs, *kept))


def _backward(joint: JointGraph, cut: Cut) -> fx.Graph:
    kept = (*cut.saved, *cut.numbers)
    goals = [g if i in cut.needed else None for i, g in enumerate(joint.gradients)]
    wanted = ancestors(goals, stop=kept)
    copy = _Copy()
    for node in (*kept, *joint.cotangents):
        copy.place(node)
    for node in joint.graph.nodes:
        if node in wanted and (phase_of(node) == BACKWARD or is_random(node)):
            copy.require(node)
    for goal in goals:
        if isinstance(goal, fx.Node):
            copy.require(goal)
    return copy.finish(goals)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A graph that grows by nodes of another one."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    copies: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def place(self, node: fx.Node) -> None:
        """Make `node`, whatever it is, a placeholder of its name."""
        self._add(node, self.graph.create_node("placeholder", node.name, name=node.name))

    def extend(self, nodes: Iterable[fx.Node], wanted: Collection[fx.Node]) -> None:
        """Copy those of `nodes` that are wanted, in their order."""
        for node in nodes:
            if node in wanted:
                self._copy(node)

    def require(self, goal: fx.Node) -> None:
        """Copy `goal`, and before it what it needs and is not there yet."""
        pending = [goal]
        while pending:
            node = pending[-1]
            missing = [n for n in node.all_input_nodes if n not in self.copies]
            if node in self.copies or not missing:
                self._copy(pending.pop())
            else:
                pending += reversed(missing)

    def finish(self, values: Iterable[Any]) -> fx.Graph:
        """The graph, returning `values`."""
        self.graph.output(tuple(fx.map_arg(list(values), self.copies.__getitem__)))
        self.graph.lint()
        return self.graph

    def _copy(self, node: fx.Node) -> None:
        if node in self.copies:
            return
        if node.op == "placeholder":
            raise InternalError(
                "a cut must save what backward needs of the inputs", got=f"`{node.name}`"
            )
        args, kwargs = fx.map_arg((node.args, node.kwargs), self.copies.__getitem__)
        self._add(node, self.graph.create_node(node.op, node.target, args, kwargs, node.name))

    def _add(self, node: fx.Node, copy: fx.Node) -> None:
        copy.meta = dict(node.meta)
        self.copies[node] = copy


def _require_no_repeated_draw(forward: fx.Graph, backward: fx.Graph) -> None:
    drawn = {node.name for node in forward.nodes if is_unrepeatable(node)}
    for node in backward.nodes:
        if is_unrepeatable(node) and node.name in drawn:
            raise InternalError(
                "a random or opaque op must not run twice",
                at=str(node.meta.get("place", "")),
                got=f"`{node.name}` in forward and in backward",
            )
