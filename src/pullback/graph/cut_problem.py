"""What a cut has to decide: which nodes may be saved or run again, and what each costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pullback.errors import InternalError
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


# ---- the problem: which nodes, at which price ----


@dataclass(frozen=True, slots=True)
class Item:
    """The prices of a node that can run before any cotangent is known."""

    is_savable: bool
    charge: int  # bytes, if saved, that nothing else keeps alive
    alive: int  # bytes, if saved, that are alive anyway
    flops: int | None  # of running it a second time; None: it must not


@dataclass(frozen=True, slots=True)
class Problem:
    """What there is to decide. Every item is needed by the border, which backward must have."""

    joint: JointGraph
    needed: tuple[int, ...]
    items: dict[fx.Node, Item]
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

    def cut_saving(self, saved: Collection[fx.Node]) -> Cut:
        """The cut that saves `saved`, but for what backward then does not use."""
        used = self.used(saved)
        kept = [node for node in self.items if node in used]
        tensors = [node for node in kept if not is_plain_number(node)]
        inputs = [node for node in tensors if node.op == "placeholder"]
        returned = _bases(self.joint.outputs).difference(inputs)
        repeated = self.repeated(kept)
        total, of_inputs = _sum(tensors), _sum(inputs)
        of_outputs = _sum(node for node in tensors if node in returned)
        return Cut(
            saved=tuple(tensors),
            numbers=tuple(node for node in kept if is_plain_number(node)),
            recomputed=tuple(repeated),
            needed=self.needed,
            intermediate_bytes=total - of_inputs - of_outputs,
            input_bytes=of_inputs,
            output_bytes=of_outputs,
            charged_bytes=_sum(node for node in tensors if node not in self.alive),
            flops=sum(map(flops_of, repeated)),
        )


def pose(
    joint: JointGraph,
    policy: str | int,
    free: Collection[str | int],
    needed: Collection[int] | None,
) -> Problem:
    """What there is to decide about `joint`; the arguments are those of `cut`."""
    positions = tuple(range(len(joint.gradients)) if needed is None else sorted(needed))
    goals = [joint.gradients[position] for position in positions]
    pinned = _pinned_to_backward(joint, by_phase=policy == "everything")
    users = ancestors(goals) & pinned
    border = {n for user in users for n in user.all_input_nodes} | set(_nodes(goals))
    reach = ancestors(border - pinned)
    nodes = [node for node in joint.graph.nodes if node in reach]
    called = [node for node in nodes if is_opaque(node)]
    alive = frozenset(_free_nodes(joint, free) | _bases(joint.outputs))
    return Problem(
        joint,
        positions,
        items=_priced(nodes, policy, alive),
        border=tuple(node for node in nodes if node in border),
        anyway=frozenset(nodes if policy == "everything" else run_in_forward(joint, called)),
        alive=alive,
    )


def _free_nodes(joint: JointGraph, free: Collection[str | int]) -> set[fx.Node]:
    known: dict[str | int, fx.Node] = dict(enumerate(joint.inputs))
    known |= {node.name: node for node in joint.inputs}
    if unknown := [each for each in free if each not in known]:
        names = ", ".join(node.name for node in joint.inputs)
        raise InternalError("`free` must hold inputs", expected=names, got=f"{unknown}")
    return {known[each] for each in free}


def _pinned_to_backward(joint: JointGraph, *, by_phase: bool) -> set[fx.Node]:
    """The nodes that cannot run in forward.

    They need a cotangent, or something random or opaque that backward does and that therefore stays
    there. With `by_phase`, all that was traced in backward stays there, but for numbers.
    """
    pinned = set(joint.cotangents)
    for node in joint.graph.nodes:
        is_bound = is_unrepeatable(node) or (by_phase and not is_plain_number(node))
        is_own = node.op == "call_function" and phase_of(node) == BACKWARD and is_bound
        if node.op != "output" and (is_own or not pinned.isdisjoint(node.all_input_nodes)):
            pinned.add(node)
    return pinned


def _priced(
    nodes: Collection[fx.Node], policy: str | int, alive: Collection[fx.Node]
) -> dict[fx.Node, Item]:
    items: dict[fx.Node, Item] = {}
    grids = _grids(nodes)
    fated: set[fx.Node] = set()  # what comes of random and opaque ops
    for node in nodes:
        if is_unrepeatable(node) or not fated.isdisjoint(node.all_input_nodes):
            fated.add(node)
        is_input = node.op == "placeholder"
        is_bound = policy == "inputs" and not (is_input or is_plain_number(node) or node in fated)
        is_free = node in alive or (policy == "inputs" and is_input)
        size = bytes_of(node) if is_savable(node) else 0
        items[node] = Item(
            is_savable(node) and not is_bound,
            charge=0 if is_free else size,
            alive=size if is_free else 0,
            flops=None if is_input or _runs_once(node, policy, grids) else flops_of(node),
        )
    return items


def _grids(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """What is made of sizes alone, inside one call: eager has it in a kernel, and keeps it nowhere.

    An example are the places at which an interpolation reads its image.
    """
    grids: set[fx.Node] = set()
    for node in nodes:
        if node.op != "call_function" or is_plain_number(node) or is_unrepeatable(node):
            continue
        made = [n for n in node.all_input_nodes if not is_plain_number(n)]
        unit = node.meta.get("unit")
        if all(n in grids and n.meta.get("unit") == unit for n in made):
            grids.add(node)
    return grids


def _runs_once(node: fx.Node, policy: str | int, grids: Collection[fx.Node]) -> bool:
    """Whether `policy` forbids to run `node` a second time."""
    if policy == "everything":
        return not (is_plain_number(node) or is_view(node) or node in grids)
    is_dear = policy in ("auto", "factors") and (is_matmul_like(node) or _shrinks(node))
    return is_dear or is_unrepeatable(node) or (policy == "factors" and is_factor(node))


def is_factor(node: fx.Node) -> bool:
    """Whether matmul-like ops both of forward and of backward read `node`, or views of it."""
    if node.op != "call_function" or is_view(node):
        return False
    phases = {phase_of(user) for user in _readers(node) if is_matmul_like(user)}
    return BACKWARD in phases and len(phases) > 1


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes that read `node` or a view of it."""
    for user in node.users:
        yield from _readers(user) if is_view(user) else (user,)


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


def is_plain_number(node: fx.Node) -> bool:
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
