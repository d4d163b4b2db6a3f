"""Which units of a program share a node, and an order to run the nodes in.

A *grouping* is a partition of the units. Any partition will do whose groups can run one after the
other: where what one group needs of another does not lead back to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pullback.capture.units import Program, Unit
from pullback.errors import GroupingError

Groups = tuple[tuple[int, ...], ...]


def groups_of(
    program: Program, groups: Iterable[Iterable[int]], drawing: Sequence[int] = ()
) -> Groups:
    """A partition of the units of `program`: `groups`, and every other unit by itself.

    They stand in the order in which they run. Raises `GroupingError` where there is none.
    `drawing` are the units that draw random numbers: they stay in order.
    """
    named = [tuple(sorted(group)) for group in groups]
    _require_units(program, named)
    met = {number for group in named for number in group}
    alone = [(unit.number,) for unit in program.units if unit.number not in met]
    return _ordered(program, [*(group for group in named if group), *alone], drawing)


def _require_units(program: Program, groups: Sequence[tuple[int, ...]]) -> None:
    count, met = len(program.units), set[int]()
    for group in groups:
        for number in group:
            if not 0 <= number < count:
                raise GroupingError(
                    f"a group must name units of `{program.name}`",
                    expected=f"numbers from 0 to {count - 1}: {_listed(program.units)}",
                    got=f"{number}",
                )
            if number in met:
                raise GroupingError(
                    f"each unit of `{program.name}` must be in one group",
                    got=f"{number} ({program.units[number].name}) twice",
                )
            met.add(number)


def _listed(units: Sequence[Unit]) -> str:
    return ", ".join(f"{unit.number} {unit.name}" for unit in units[:12])


# ---- order ----


def waits(program: Program, drawing: Sequence[int] = ()) -> list[set[int]]:
    """For each unit, the units that must have run before it.

    Those that make its inputs, those that read what it changes in place, and, if it draws random
    numbers, the one that draws before it.
    """
    maker: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    found: list[set[int]] = []
    earlier = dict(zip(drawing[1:], drawing, strict=False))
    for unit in program.units:
        before = {earlier[unit.number]} if unit.number in earlier else set()
        before |= {maker[number] for number in unit.needs if number in maker}
        for old, _ in unit.changed:
            before |= readers.get(old, set())
        found.append(before - {unit.number})
        maker |= dict.fromkeys(unit.makes, unit.number)
        for number in unit.needs:
            readers.setdefault(number, set()).add(unit.number)
    return found


def _ordered(program: Program, groups: Sequence[tuple[int, ...]], drawing: Sequence[int]) -> Groups:
    """The groups such that each runs after those that it waits for, else as in the program."""
    home = {number: group for group in groups for number in group}
    before = waits(program, drawing)
    needed = {g: {home[b] for number in g for b in before[number]} - {g} for g in groups}
    order: list[tuple[int, ...]] = []
    left = sorted(groups)
    while left:
        ready = next((group for group in left if not needed[group] & set(left)), None)
        if ready is None:
            raise _circular(program, left, needed)
        left.remove(ready)
        order.append(ready)
    return tuple(order)


def _circular(
    program: Program,
    left: Sequence[tuple[int, ...]],
    needed: dict[tuple[int, ...], set[tuple[int, ...]]],
) -> GroupingError:
    group, seen = left[0], list[tuple[int, ...]]()
    while group not in seen:
        seen.append(group)
        group = min(needed[group] & set(left))
    ring = seen[seen.index(group) :]
    return GroupingError(
        f"groups of `{program.name}` must not wait for each other",
        got=" and ".join(str(list(one)) for one in sorted(ring)),
        fix="put them into one group, or take apart the one that surrounds the other",
    )


def is_in_order(groups: Groups) -> bool:
    """Whether the units run in the order of the program."""
    row = [number for group in groups for number in group]
    return row == sorted(row)


# ---- what groups share ----


@dataclass(frozen=True, slots=True)
class Crossing:
    """A change in place that reaches over the border of a group."""

    unit: Unit
    groups: frozenset[tuple[int, ...]]


def crossings(program: Program, groups: Groups) -> list[Crossing]:
    """The units that change what another group made, or read through a view of it."""
    home = {number: group for group in groups for number in group}
    maker = {number: unit.number for unit in program.units for number in unit.makes}
    found = []
    for unit in program.units:
        olds = [old for old, _ in unit.changed]
        involved = {home[maker[old]] for old in olds if old in maker} | {home[unit.number]}
        if len(involved) > 1 or any(old not in maker for old in olds):
            found.append(Crossing(unit, frozenset(involved)))
    return found
