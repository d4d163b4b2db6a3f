"""Which units of a program share a node, and an order to run the nodes in.

A *grouping* is a partition of the units. Any partition will do whose groups can run one after the
other: where what one group needs of another does not lead back to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from pullback.capture.trees import flatten
from pullback.capture.units import Program, Ref, Unit, part_of
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


def unfit(
    program: Program, groups: Groups, wanted: Collection[tuple[int, ...]]
) -> dict[tuple[int, ...], str]:
    """Why some of the groups that are `wanted` as nodes can be none."""
    found = {
        group: f"`{one.unit.name}` {one.what} outside its group ({one.unit.place})"
        for one in (*split_gradients(program, groups, wanted), *crossings(program, groups))
        for group in one.groups
        if group in wanted
    }
    unused = {g: "its result is not used" for g in wanted if not part_of(program, g).outputs}
    return {**unused, **found}


@dataclass(frozen=True, slots=True)
class Crossing:
    """A unit that reaches over the border of groups, and in which way (`what`)."""

    unit: Unit
    groups: frozenset[tuple[int, ...]]
    what: str


def crossings(program: Program, groups: Groups) -> list[Crossing]:
    """The units that change what another group made, or read through a view of it.

    A node keeps what it reads, so a group that reads it before the change is concerned as well.
    """
    home = {number: group for group in groups for number in group}
    maker = {number: unit.number for unit in program.units for number in unit.makes}
    found = []
    for unit in program.units:
        olds = [old for old, _ in unit.changed]
        involved = {home[maker[old]] for old in olds if old in maker} | {home[unit.number]}
        earlier = program.units[: unit.number]
        involved |= {home[one.number] for one in earlier if not set(olds).isdisjoint(one.needs)}
        if len(involved) > 1 or any(old not in maker for old in olds):
            found.append(Crossing(unit, frozenset(involved), "changes what is made"))
    return found


def split_gradients(
    program: Program, groups: Groups, nodes: Collection[tuple[int, ...]]
) -> list[Crossing]:
    """The calls of `torch.autograd.grad` that would go through units which nobody sees apart.

    What such a call goes through must be inside its own group if that is one of the `nodes`;
    otherwise no other node may both make what it differentiates by, and use it.
    """
    home = {number: group for group in groups for number in group}
    maker = {number: unit.number for unit in program.units for number in unit.makes}
    found = []
    for unit in program.units:
        if unit.target is not torch.autograd.grad:
            continue
        by = _differentiated_by(unit)
        between = _between(program, unit, by)
        own = home[unit.number]
        if own in nodes and any(home[number] != own for number in between):
            found.append(Crossing(unit, frozenset({own}), "differentiates what is made"))
        made = {home[maker[number]] for number in by if number in maker}
        hidden = {home[number] for number in between} & made - {own}
        if hidden:
            found.append(Crossing(unit, frozenset(hidden), "differentiates what is made"))
    return found


def _differentiated_by(unit: Unit) -> set[int]:
    """The values by which a call of `torch.autograd.grad` differentiates."""
    leaves, _ = flatten(unit.args[1] if len(unit.args) > 1 else unit.kwargs.get("inputs"))
    return {leaf.number for leaf in leaves if isinstance(leaf, Ref)}


def _between(program: Program, unit: Unit, by: set[int]) -> set[int]:
    """The units before `unit` that use one of the values `by`, and help to make its inputs."""
    after, before = set(by), set(unit.inputs)
    below = [u for u in program.units if u.number < unit.number]
    users = set()
    for one in below:
        if after & set(one.needs):
            users.add(one.number)
            after |= set(one.outputs)
    makers = set()
    for one in reversed(below):
        if before & set(one.makes):
            makers.add(one.number)
            before |= set(one.needs)
    return users & makers
