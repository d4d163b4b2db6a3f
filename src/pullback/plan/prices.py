"""What each group of units costs by itself, as a node and, for a single unit, as written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from pullback.compose.flow import node_of
from pullback.compose.options import ComposeOptions
from pullback.compose.reasons import is_refusal, reason_text
from pullback.errors import CaptureError
from pullback.plan.groupings import Group, Groupings
from pullback.plan.measure import Meter, Task
from pullback.plan.sized_program import SizedProgram
from pullback.plan.timing import interleave, typical

ROUNDS = 5  # that each task is timed
BATCH = 24  # tasks that share their rounds
WRITTEN = "as written"


@dataclass
class Prices:
    """What groups cost. `nodes` are those that are cheapest as a node; `left` were not measured.

    `built` keeps the nodes alive: a composition that is made meanwhile reuses them. `refused` has
    the reason for each group that cannot be a node.
    """

    costs: dict[Group, float] = field(default_factory=dict)
    nodes: set[Group] = field(default_factory=set)
    built: list[Any] = field(default_factory=list)
    refused: dict[Group, str] = field(default_factory=dict)
    left: int = 0

    def cost(self, group: Group) -> float:
        """The cost of a group; infinite if it cannot be a node."""
        return self.costs.get(group, math.inf)


@dataclass
class _Measured:
    """Groups by how they are written: those that are written alike share a task."""

    nodes: dict[Group, Any] = field(default_factory=dict)
    tasks: dict[Any, Task] = field(default_factory=dict)


def price_groups(
    case: SizedProgram,
    space: Groupings,
    pair: tuple[str, str],
    *,
    meter: Meter,
    weights: tuple[float, float],
    is_over: Callable[[], bool],
    report: Callable[[str], None],
) -> Prices:
    """Price the groups of a program with a backend and policy of saving.

    `weights` say what a second and a byte cost. Where time is over, what is left has no price;
    single units as written always have one.
    """
    prices, measured = Prices(), _Measured()
    prices.built = [measured.nodes]
    order = space.most_promising_first(case.names)
    for place, group in enumerate(order):
        if is_over():
            prices.left = len(order) - place
            break
        report(f"group {place + 1} of {len(order)}: {pair[0]}, save {pair[1]}")
        try:
            node = _node(case, group, pair)
            if node not in measured.tasks:
                task = case.task_of_node(case.part(group), node)
                task()
                measured.tasks[node] = task
            measured.nodes[group] = node
        except Exception as error:  # what cannot be captured, compiled or run cannot be a node
            prices.refused[group] = reason_text(error) if is_refusal(error) else repr(error)
    alike = {u: measured.nodes.get((u,), u) for u in range(space.count)}
    for unit, key in alike.items():
        if (WRITTEN, key) not in measured.tasks:
            assert case.units is not None
            task = case.task_of_unit(case.units.units[unit])
            with suppress(Exception):  # alone, a unit may lack what the program sets up
                task()
                measured.tasks[WRITTEN, key] = task
    found = _measure(case, measured.tasks, meter, weights)
    for group, node in measured.nodes.items():
        prices.costs[group] = found[node]
        prices.nodes.add(group)
    for unit, key in alike.items():
        written = found.get((WRITTEN, key), 0.0)
        if written <= prices.cost((unit,)):
            prices.costs[unit,] = written
            prices.nodes.discard((unit,))
    return prices


def _node(case: SizedProgram, group: Group, pair: tuple[str, str]) -> Any:
    """The class of a node for the group. Raises if there can be none."""
    if case.crosses(group):
        raise CaptureError("a change in place must stay inside a group")
    module = getattr(case.program, "__module__", None) or "__main__"
    return node_of(case.part(group), case.values, ComposeOptions(*pair), module)


def _measure(
    case: SizedProgram, tasks: Mapping[Any, Task], meter: Meter, weights: tuple[float, float]
) -> dict[Any, float]:
    """The cost of each task, without the fixed cost of a call of autograd."""
    leaf = torch.ones(1, requires_grad=True)
    floor = Task(lambda x: x.view_as(x), (leaf,), (leaf,))
    keys, costs = list(tasks), dict[Any, float]()
    of_second, of_byte = weights
    for first in range(0, len(keys), BATCH):
        chunk = {key: tasks[key] for key in keys[first : first + BATCH]}
        taken: dict[Any, list[float]] = {}
        interleave(meter.time, {None: floor, **chunk}, taken, rounds=ROUNDS)
        least = typical(taken.pop(None))
        for key, times in taken.items():
            kept = meter.saved(tasks[key], case.kept_anyway) if of_byte else 0
            costs[key] = max(typical(times) - least, 0.0) * of_second + kept * of_byte
    return costs
