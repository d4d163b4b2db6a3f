"""With which placements the gradients of a Function are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import product

import torch
from torch import Tensor

from pullback.check.ranks.blocks import Blocks, block_of, is_one_value
from pullback.check.ranks.commands import Pulled, Values
from pullback.check.ranks.joint import Joint, PointKey, Shared
from pullback.check.ranks.placements import REPLICATE, SHARD, TRIED, Assignment, Placed
from pullback.check.ranks.slope import Slope
from pullback.judge.tolerances import ERRORS, RELATIVE, SCALED, UNCERTAIN, UNCERTAIN_AT_ZERO

DRAWS = 2
MOST = 32  # assignments that are tried
NEAREST = 4  # points at which wrong gradients are looked at in full
COARSE = 1e-2  # of a gradient, where the function does not serve float64


@dataclass(frozen=True, slots=True)
class Rows:
    """One input's gradients beside what they must be, along directions, for some cotangents.

    `got[r]` and `want[r]` are rank r's; `parts[s][r]` what the outputs of rank s add to the
    derivative by the value of rank r; `wrong[r]` says where they differ beyond doubt.
    """

    name: str
    placed: Placed
    got: tuple[Tensor, ...]
    want: tuple[Tensor, ...]
    own: tuple[Tensor, ...]
    parts: tuple[tuple[Tensor, ...], ...]
    wrong: tuple[Tensor, ...]
    is_one: bool = True  # whether all ranks of a block have the same gradient
    is_own_share: bool = False  # whether each is what that rank's use of the value adds

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong."""
        return self.is_one_where_it_must and not any(bool(w.any()) for w in self.wrong)

    @property
    def is_one_where_it_must(self) -> bool:
        """Whether a replicated input has one gradient."""
        return self.is_one or not self.placed.is_replicated or self.placed.has_shares


@dataclass(frozen=True, slots=True)
class Judged:
    """An assignment, what speaks against it, and every input's rows."""

    assignment: Assignment
    differing: tuple[int, ...] = ()  # outputs that are no one value, though they must be
    rows: tuple[Rows, ...] = field(default=())

    @property
    def is_possible(self) -> bool:
        """Whether outputs are what the assignment says."""
        return not self.differing

    @property
    def is_right(self) -> bool:
        """Whether every gradient is right under it."""
        return self.is_possible and all(row.is_right for row in self.rows)

    @property
    def wrong(self) -> tuple[Rows, ...]:
        """The inputs whose gradients are wrong under it."""
        return tuple(row for row in self.rows if not row.is_right)


def assignments(joint: Joint) -> Iterator[Assignment]:
    """The assignments to be tried: the declared one, else all that there are, likely ones first."""
    inputs = [_choices(joint, position) for position in joint.positions]
    outputs = [_output_choices(joint, number) for number in range(joint.outputs)]
    count = 1
    for choices in (*inputs, *outputs):
        count *= len(choices)
    every_output: Iterator[Sequence[Placed]] = iter(product(*outputs))
    if count > MOST and not joint.declared.outputs:
        every_output = iter([[o[-1] for o in outputs], [o[0] for o in outputs]])
    names = [joint.names[position] for position in joint.positions]
    for placed_outputs in every_output:
        for placed in product(*inputs):
            pairs = tuple(zip(names, placed, strict=True))
            yield Assignment(pairs, tuple(placed_outputs))


def _choices(joint: Joint, position: int) -> tuple[Placed, ...]:
    declared = joint.declared.of_input(joint.names[position])
    if declared is not None:
        kinds: tuple[Placed, ...] = (declared,)
    elif joint.is_global:
        kinds = (REPLICATE,)
    else:
        is_tried = joint.is_same(position) and not _is_idle(joint, position)
        kinds = TRIED if is_tried else (SHARD,)
    return _over(joint, kinds, (joint.held_by(position),), lambda placed: placed.is_replicated)


def _over(
    joint: Joint,
    kinds: Sequence[Placed],
    every: Sequence[Blocks],
    is_one: Callable[[Placed], bool],
) -> tuple[Placed, ...]:
    """Placements with the ranks that hold one value, where that is not all that belong together."""
    return tuple(
        replace(placed, over=() if blocks == joint.blocks else blocks)
        for placed in kinds
        for blocks in (every if is_one(placed) else (joint.blocks,))
    )


def _is_idle(joint: Joint, position: int) -> bool:
    """Whether an input has no gradient and moves no output: its placement says nothing."""
    if any(reply.value.gradients.get(position) is not None for reply in joint.first):
        return False
    slopes = joint.slopes(frozenset(), is_brief=True)
    return not any(slopes[rank, p].is_felt for rank, p in slopes if p == position)


def _output_choices(joint: Joint, number: int) -> tuple[Placed, ...]:
    declared = joint.declared.of_output(number)
    if declared is not None:
        kinds: tuple[Placed, ...] = (declared,)
    elif joint.is_global and joint.first[0].value.spread[number]:
        kinds = (REPLICATE,)
    else:
        kinds = TRIED if joint.live[number] else (SHARD,)
    held = joint.output_held_by(number)
    return _over(joint, kinds, held, lambda placed: placed.has_one_cotangent)


def held(joint: Joint, placed: Placed) -> Blocks:
    """The ranks that hold one value under a placement."""
    return placed.over or joint.blocks


def shared_of(joint: Joint, assignment: Assignment) -> Shared:
    """Of each output the ranks whose cotangents are one."""
    return tuple(held(joint, p) if p.has_one_cotangent else () for p in assignment.outputs)


def all_judged(joint: Joint) -> list[Judged]:
    """Every assignment judged; what was given as different values is replicated in none."""

    def compute() -> list[Judged]:
        every = list(assignments(joint))[: 2 * MOST]
        briefly = [judged(joint, assignment, is_brief=True) for assignment in every]
        left = [one.assignment for one in briefly if one.is_right]
        found = [judged(joint, assignment) for assignment in left]
        if any(one.is_right for one in found):
            return found
        shared = [judged(joint, one) for one in map(partly_shared(joint), briefly) if one]
        right = [one for one in shared if one.is_right]
        return right or [judged(joint, one.assignment) for one in _nearest(joint, briefly)]

    return joint.once("judged", compute)


def partly_shared(joint: Joint) -> Callable[[Judged], Assignment | None]:
    """For an assignment that is wrong: the same, with shares as the gradients that are wrong.

    So it is with the weights of a synchronised norm, whose gradients are summed elsewhere. None
    where others are wrong too, where they are no share of that rank's, or where it is declared what
    those gradients are.
    """

    def shared(one: Judged) -> Assignment | None:
        names = {row.name for row in one.wrong if row.placed.is_replicated and row.is_own_share}
        is_declared = any(joint.declared.of_input(name) for name in names)
        if not names or is_declared or len(names) < len(one.wrong):
            return None
        inputs = tuple(
            (name, replace(placed, has_shares=placed.has_shares or name in names))
            for name, placed in one.assignment.inputs
        )
        return Assignment(inputs, one.assignment.outputs)

    return shared


def _nearest(joint: Joint, briefly: Sequence[Judged]) -> list[Judged]:
    """Those with the fewest wrong gradients: to look at every point in full takes long."""
    ordered = sorted(briefly, key=lambda one: (not one.is_possible, len(one.wrong)))
    points = [replicated_of(joint, one.assignment) for one in ordered]
    kept = list(dict.fromkeys(points))[:NEAREST]
    return [one for one, point in zip(ordered, points, strict=True) if point in kept]


def consistent(joint: Joint) -> list[Assignment]:
    """The assignments with which the Function is consistent, the likeliest first."""
    return sorted((j.assignment for j in all_judged(joint) if j.is_right), key=_strictness)


class Convention(Enum):
    """What backward takes the cotangents of an output for that all ranks hold."""

    PASSES = "one for all ranks"
    SUMS = "each rank's own"


def conventions(joint: Joint, found: Sequence[Assignment]) -> Iterator[tuple[int, Convention]]:
    """The convention of each output that is one value, where the Function is right under one."""
    if not found or joint.is_global:
        return
    outputs = joint.outputs_at(frozenset())
    for number in range(joint.outputs):
        kinds = {one.outputs[number].is_replicated for one in found}
        is_open = joint.declared.of_output(number) is None and joint.live[number]
        if is_open and len(kinds) == 1 and _is_one(outputs, number, joint.blocks):
            yield number, Convention.PASSES if kinds.pop() else Convention.SUMS


def _strictness(assignment: Assignment) -> int:
    """Fewer replicated values come first: what holds for any values says most."""
    placed = [*(p for _, p in assignment.inputs), *assignment.outputs]
    return sum(p.is_replicated + p.has_shares for p in placed)


def replicated_of(joint: Joint, assignment: Assignment) -> frozenset[int]:
    """The positions of the inputs that are one value."""
    return frozenset(
        position
        for position in joint.positions
        if assignment.of(joint.names[position]).is_replicated
    )


def judged(
    joint: Joint, assignment: Assignment, key: PointKey = "", *, is_brief: bool = False
) -> Judged:
    """What holds of the gradients under an assignment, at a point that `key` names."""
    replicated = replicated_of(joint, assignment)
    key = key or replicated
    shared = shared_of(joint, assignment)
    pulls = [joint.pulled(key, draw, shared) for draw in range(DRAWS)]
    outputs = [pulled.outputs for pulled in pulls[0][1]]
    differing = [
        number
        for number, placed in enumerate(assignment.outputs)
        if placed.is_replicated and not _is_one(outputs, number, held(joint, placed))
    ]
    if differing:
        return Judged(assignment, tuple(differing))
    slopes = joint.slopes(key, is_brief=is_brief)
    differing = [
        number
        for number, placed in enumerate(assignment.outputs)
        if placed.is_replicated
        and not _moves_as_one(joint, slopes, replicated, number, held(joint, placed))
    ]
    if differing:
        return Judged(assignment, tuple(differing))
    rows = tuple(_rows(joint, assignment, position, slopes, pulls) for position in joint.meant)
    return Judged(assignment, (), rows)


def _is_one(outputs: Sequence[Values], number: int, blocks: Blocks) -> bool:
    return all(is_one_value([outputs[rank][number] for rank in block]) for block in blocks)


def _moves_as_one(
    joint: Joint,
    slopes: dict[tuple[int, int], Slope],
    replicated: frozenset[int],
    number: int,
    blocks: Blocks,
) -> bool:
    """Whether an output stays one value when inputs move: sharded ones alone, others together."""
    for block in blocks:
        for position in joint.positions:
            movers = [[r] for r in range(joint.size)]
            if position in replicated:
                movers = [list(b) for b in joint.held_by(position)]
            for ranks in movers:
                present = [slopes[r, position] for r in ranks if (r, position) in slopes]
                if not present:
                    continue
                changes = [sum(s.change[rank][number] for s in present) for rank in block]
                errors = [sum(s.error[rank][number] for s in present) for rank in block]
                for change, error in zip(changes[1:], errors[1:], strict=True):
                    if not _agrees(change, changes[0], ERRORS * (error + errors[0])):
                        return False
    return True


def _agrees(one: Tensor | int, two: Tensor | int, slack: Tensor | int) -> bool:
    assert isinstance(one, Tensor)
    return bool(((one - two).abs() <= slack + 1e-6 * one.abs() + 1e-9).all())


def _rows(
    joint: Joint,
    assignment: Assignment,
    position: int,
    slopes: dict[tuple[int, int], Slope],
    pulls: Sequence[tuple[list[Values], list[Pulled]]],
) -> Rows:
    """One input's gradients and what they must be, all draws in a row."""
    name = joint.names[position]
    placed = assignment.of(name)
    blocks = held(joint, placed)
    size = joint.size
    present = [(r, position) in slopes for r in range(size)]
    mover = [slopes.get((r, position)) for r in range(size)]
    lead = next((s for s in mover if s is not None), None)
    got: list[list[Tensor]] = [[] for _ in range(size)]
    parts: list[list[list[Tensor]]] = [[[] for _ in range(size)] for _ in range(size)]
    own: list[list[Tensor]] = [[] for _ in range(size)]
    errors: list[list[Tensor]] = [[] for _ in range(size)]
    is_one = True
    for cotangents, pulled in pulls:
        grads = [p.gradients[position] for p in pulled]
        is_one &= all(is_one_value([grads[rank] for rank in block]) for block in blocks)
        for rank in range(size):
            slope = mover[rank] if present[rank] else lead
            if slope is None:
                continue
            got[rank].append(slope.along(grads[rank]))
            total, error, by = _pulled(joint, assignment, slope, cotangents, rank, present[rank])
            own[rank].append(total)
            errors[rank].append(error)
            for s in range(size):
                parts[s][rank].append(by[s])
    flat = [_joined(one) for one in got]
    share, off = [_joined(one) for one in own], [_joined(one) for one in errors]
    is_own_share = not joint.is_global and not any(
        bool(differs(*row, is_exact=joint.is_exact).any())
        for row in zip(flat, share, off, strict=True)
    )
    if placed.is_replicated:
        want, off = _over_blocks(share, blocks), _over_blocks(off, blocks)
        if placed.has_shares:
            flat = _over_blocks(flat, blocks)
    else:
        want = share
    wrong = [
        differs(g, w, e, is_exact=joint.is_exact) for g, w, e in zip(flat, want, off, strict=True)
    ]
    by_rank = tuple(tuple(_joined(one) for one in row) for row in parts)
    return Rows(
        name,
        placed,
        tuple(flat),
        tuple(want),
        tuple(share),
        by_rank,
        tuple(wrong),
        is_one,
        is_own_share,
    )


def _pulled(
    joint: Joint,
    assignment: Assignment,
    slope: Slope,
    cotangents: Sequence[Values],
    rank: int,
    is_moved: bool,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The derivative of the loss along a slope, its error, and what each rank's outputs add."""
    zero = torch.zeros(len(slope.directions), dtype=torch.float64)
    total, error = zero.clone(), zero.clone()
    by = [zero.clone() for _ in range(joint.size)]
    if not is_moved:
        return total, error, by
    for number, placed in enumerate(assignment.outputs):
        for s in range(joint.size):
            value, off = slope.pulled(s, number, cotangents[s][number])
            by[s] += value
            if not placed.is_replicated or s == block_of(held(joint, placed), s)[0]:
                total += value
                error += off
    return total, error, by


def _joined(rows: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(rows)) if rows else torch.zeros(0, dtype=torch.float64)


def _over_blocks(rows: Sequence[Tensor], blocks: Blocks) -> list[Tensor]:
    """The sum over the ranks of each rank's block."""
    return [
        torch.stack([rows[r] for r in block_of(blocks, rank)]).sum(0) for rank in range(len(rows))
    ]


def differs(got: Tensor, want: Tensor, error: Tensor, *, is_exact: bool) -> Tensor:
    """Where a gradient is wrong, beyond doubt."""
    if got.shape != want.shape:
        return torch.ones(1, dtype=torch.bool)
    size = want.abs()
    largest = float(size.max()) if size.numel() else 0.0
    share = RELATIVE if is_exact else COARSE
    allowed = share * size + ERRORS * error + (SCALED if is_exact else COARSE) * largest + 1e-9
    known = error <= UNCERTAIN * size + UNCERTAIN_AT_ZERO * max(largest, 1e-6)
    return known & ~((got - want).abs() <= allowed)
