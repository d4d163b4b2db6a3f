"""Trading bytes for flops: the least work within a budget, and every point of the trade.

The points of the convex hull come from a sweep of minimum cuts of `bytes + x * flops`; those above
it from branch and bound below each point.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torch import fx

from pullback.graph.cut_network import (
    BYTES_THEN_FLOPS,
    FLOPS_THEN_BYTES,
    NOTHING,
    Choice,
    Tiers,
    best_choice,
    measured,
    sure,
    walk,
)
from pullback.graph.cut_problem import Problem

EFFORT = 20_000
"""How many networks one search may solve, times the number of their items: some seconds."""

GRAIN = 10_000
"""A difference in bytes or flops below one part in this many does not count."""


def pareto(problem: Problem) -> Iterator[Choice]:
    """Every choice that no other beats in bytes and flops, where proved, most bytes first."""
    here, last = sure(problem, FLOPS_THEN_BYTES), sure(problem, BYTES_THEN_FLOPS)
    corners = [here, *_corners(problem, here, last), last]
    edges = [_across(problem, left, right) for left, right in itertools.pairwise(corners)]
    known = dict(itertools.chain.from_iterable(walk(problem, edge) for edge in edges))
    grid, step = _charges(problem), max(1, here.bytes // GRAIN)
    yield here
    while here.bytes - step >= last.bytes:
        budget = grid.floor(here.bytes - step)
        on_hull = max((charge for charge in known if charge <= budget), default=-1)
        if budget - on_hull < step:
            here = measured(problem, known[on_hull])
        else:
            best, is_proved = search(problem, budget)
            below = next(corner for corner in corners if corner.bytes <= budget)
            here = best if best and is_proved else below
        yield here


def _corners(problem: Problem, left: Choice, right: Choice) -> list[Choice]:
    """The corners of the convex hull that lie strictly between two of them."""
    middle = sure(problem, _across(problem, left, right))
    if not _is_below(middle, left, right):
        return []
    return [*_corners(problem, left, middle), middle, *_corners(problem, middle, right)]


def search(problem: Problem, budget: int) -> tuple[Choice | None, bool]:
    """The choice of least work within `budget`, None if there is none; and whether that is proved.

    Branch and bound: a part of the choices is given by what must and what must never be saved, and
    bounded from below by the edge of its convex hull that crosses the budget.
    """
    budget = _charges(problem).floor(budget)
    best: Choice | None = None
    allowance = max(1, EFFORT // max(1, len(problem.items)))
    parts = [(0, 0, NOTHING, NOTHING)]
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
            across = walk(problem, _across(problem, ends[1], ends[0]), must, never)
            fits = [(charge, saved) for charge, saved in across if charge <= budget]
            found += [measured(problem, max(fits, key=lambda fit: fit[0])[1])] if fits else []
            heapq.heappush(parts, (bound, next(tickets), must, never | {node}))
            heapq.heappush(parts, (bound, next(tickets), must | {node}, never))
        best = min(found, key=lambda choice: choice.work)
    return best, True


def polished(problem: Problem, choice: Choice) -> Choice:
    """The choice of the same charged nodes that is best in all that costs no bytes."""
    charged = {node for node, item in problem.items.items() if item.charge}
    must, never = charged & choice.saved, charged - choice.saved
    best = best_choice(problem, FLOPS_THEN_BYTES, frozenset(must), frozenset(never))
    return best or choice


def _bracket(
    problem: Problem, budget: int, must: frozenset[fx.Node], never: frozenset[fx.Node]
) -> tuple[tuple[Choice, ...], int]:
    """The ends of the hull's edge that crosses the budget, the fitting one first, and the effort.

    Nothing if nothing fits; one choice if it is the best of all and fits.
    """
    fitting = best_choice(problem, BYTES_THEN_FLOPS, must, never)
    if fitting is None or fitting.bytes > budget:
        return (), 1
    over, solved = best_choice(problem, FLOPS_THEN_BYTES, must, never), 2
    while over is not None and over.bytes > budget:
        middle = best_choice(problem, _across(problem, over, fitting), must, never)
        solved += 1
        if middle is None or not _is_below(middle, over, fitting):
            return (fitting, over), solved
        fitting, over = (middle, over) if middle.bytes <= budget else (fitting, middle)
    return (over or fitting,), solved


def _bound(problem: Problem, budget: int, fitting: Choice, over: Choice) -> int:
    """The least work that a choice can have within the budget, when none is below the line."""
    rise, run = fitting.work - over.work, over.bytes - fitting.bytes
    level = rise * fitting.bytes + run * fitting.work  # of the line: rise * bytes + run * work
    grid = _grid([item.flops or 0 for item in problem.items.values()])

    def least_bytes(flops: int) -> int:
        return max(0, -((run * flops * problem.radix - level) // (rise + run)))

    work = -((rise * budget - level) // run)
    flops = grid.ceil(work // problem.radix)
    if least_bytes(flops) > budget:
        flops = grid.ceil(flops + 1)
    return flops * problem.radix + least_bytes(flops)


def _dividing(problem: Problem, fitting: Choice, over: Choice) -> fx.Node:
    """The largest node that one of two choices saves and the other does not."""
    differing = fitting.saved ^ over.saved
    charges = {n: item.charge for n, item in problem.items.items() if n in differing}
    return max(charges, key=charges.__getitem__)


def _across(problem: Problem, left: Choice, right: Choice) -> Tiers:
    """Tiers for which the line through two choices is level: a best choice is on it or below."""
    rise, run = right.work - left.work, left.bytes - right.bytes
    return ((rise + run, 0, run * problem.radix), (1, 0, 0), (0, 1, 0))


def _is_below(middle: Choice, left: Choice, right: Choice) -> bool:
    rise, run = right.work - left.work, left.bytes - right.bytes
    return rise * (middle.bytes - left.bytes) + run * (middle.work - left.work) < 0


# ---- sums that can be ----


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


def _charges(problem: Problem) -> _Grid:
    return _grid([item.charge for item in problem.items.values()])
