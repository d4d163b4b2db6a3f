"""Every grouping of a program's units, and the cheapest of them.

A grouping can run when its groups can be done one after the other. So a grouping is a walk from "no
unit is done" to "all are done" through sets of units that have everything they wait for, and a
group is a step of such a walk. A chain of 12 units has 13 such sets and 78 steps between them,
which make 2048 walks: it is enough to know what each step costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest

Group = tuple[int, ...]
Grouping = tuple[Group, ...]

SETS = 256  # sets of done units; twelve units side by side have 4096
GROUPS = 2048  # groups that are considered; a chain of 63 units has 2016


@dataclass(frozen=True, slots=True)
class Groupings:
    """The groups of a program and how they follow each other; sets of units are bits of a number.

    `sets` are the sets of done units, smaller ones first. `groups` are the steps between them that
    are considered, and `description` says which ones these are.
    """

    count: int
    sets: tuple[int, ...]
    groups: tuple[Group, ...]
    description: str

    def __post_init__(self) -> None:
        assert self.sets[0] == 0
        assert self.sets[-1] == 2**self.count - 1

    @property
    def everything(self) -> Group:
        """The group of all units."""
        return tuple(range(self.count))

    def ends(self) -> frozenset[Group]:
        """The groups that a program can begin or end with."""
        known = set(self.sets)
        whole = self.sets[-1]
        bits = {group: _bits(group) for group in self.groups}
        return frozenset(g for g, b in bits.items() if b in known or whole ^ b in known)

    def most_promising_first(self, names: Sequence[str]) -> list[Group]:
        """The groups, those first that are most likely to be worth it, if there is no time for all.

        A group that occurs often, by the names of its units, is built once and saves often. Then
        come those that a program can begin or end with, as a grouping of two needs no others, large
        ones first; single units come last.
        """
        alike: dict[tuple[str, ...], list[Group]] = {}
        for group in self.groups:
            alike.setdefault(tuple(names[unit] for unit in group), []).append(group)
        times = {group: _apart(row) for row in alike.values() for group in row}
        ends = self.ends()

        def key(group: Group) -> tuple[bool, float, bool, int, Group]:
            size, count = len(group), times[group]
            worth = count * (size - 1) / size if count > 1 else 0.0
            return size == 1, -worth, group not in ends, -size, group

        return sorted(self.groups, key=key)


def groupings_of(before: Sequence[Collection[int]]) -> Groupings:
    """The groupings of units, where `before[n]` are those that unit n waits for.

    At most `GROUPS` groups between at most `SETS` sets are considered. Where there are more, only
    units that stand next to each other share a group, and if need be only so many of them.
    """
    count = len(before)
    found = _done_sets([_bits(b) for b in before])
    if found is not None:
        masks = _steps(found)
        if masks is not None:
            kind = "consecutive" if len(found) == count + 1 else "convex"
            return Groupings(count, found, _sorted(masks), f"all {len(masks)} {kind} groups")
    prefixes = tuple(2**n - 1 for n in range(count + 1))
    longest = _longest(count)
    rows = [(a, b) for b in range(1, count + 1) for a in range(b) if b - a in (count, *longest)]
    intervals = tuple(tuple(range(a, b)) for a, b in rows)
    words = f"{len(intervals)} groups of consecutive units"
    if len(longest) < count:
        words += f", of at most {len(longest)} or of all"
    if found is None or len(found) > count + 1:
        words += " (the program has too many branches to consider every group)"
    return Groupings(count, prefixes, tuple(sorted(intervals)), words)


def best_groupings(
    space: Groupings, cost: Callable[[Group], float], count: int
) -> list[tuple[float, Grouping]]:
    """The `count` cheapest groupings, where a grouping costs what its groups cost together.

    A group of infinite cost is in none of them.
    """
    priced = {_bits(group): (group, cost(group)) for group in space.groups}
    steps = {bits: pair for bits, pair in priced.items() if pair[1] < math.inf}
    best: dict[int, list[tuple[float, Grouping]]] = {0: [(0.0, ())]}
    for place, into in enumerate(space.sets[1:], 1):
        found: dict[Grouping, float] = {}
        for start in space.sets[:place]:
            if start & into != start or into ^ start not in steps:
                continue
            group, price = steps[into ^ start]
            for total, row in best[start]:
                # The same groups in another order are the same grouping.
                found.setdefault(tuple(sorted((*row, group))), total + price)
        best[into] = nsmallest(count, ((total, row) for row, total in found.items()))
    return best[space.sets[-1]]


def _apart(groups: Sequence[Group]) -> int:
    """How many of some groups can be chosen, from the first on, without a unit in two of them."""
    met: set[int] = set()
    count = 0
    for group in sorted(groups):
        if met.isdisjoint(group):
            met.update(group)
            count += 1
    return count


def _bits(units: Collection[int]) -> int:
    return sum(1 << unit for unit in units)


def _done_sets(before: Sequence[int]) -> tuple[int, ...] | None:
    """Every set of units that has what it waits for, smaller ones first; None if too many."""
    found, edge = [0], [0]
    while edge:
        further = dict.fromkeys(
            done | 1 << unit
            for done in edge
            for unit, needs in enumerate(before)
            if not done >> unit & 1 and needs & done == needs
        )
        edge = list(further)
        found += edge
        if len(found) > SETS:
            return None
    return tuple(found)


def _steps(sets: Sequence[int]) -> set[int] | None:
    """What can be added to one set to give another; None if there is too much."""
    found: set[int] = set()
    for place, into in enumerate(sets):
        found |= {into ^ start for start in sets[:place] if start & into == start}
        if len(found) > GROUPS:
            return None
    return found


def _longest(count: int) -> range:
    """The lengths from one on whose intervals in a row of `count` are at most `GROUPS`."""
    length, total = 1, count
    while length < count and total + count - length <= GROUPS:
        total += count - length
        length += 1
    return range(1, length + 1)


def _sorted(masks: set[int]) -> tuple[Group, ...]:
    return tuple(sorted(tuple(_units(mask)) for mask in masks))


def _units(mask: int) -> Iterator[int]:
    unit = 0
    while mask:
        if mask & 1:
            yield unit
        mask >>= 1
        unit += 1
