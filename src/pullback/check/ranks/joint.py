"""The joint function of all ranks: its values, its derivatives, and what its backward gives.

Derivatives are differences of the joint forward: one rank's input moves along a direction, all
ranks take part, and every output of every rank is looked at. They are taken in float64 where the
function serves that, at two steps, extrapolated, with an estimate of their own error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from pullback.check.findings.finding import Finding, Rule
from pullback.check.ranks.blocks import (
    Blocks,
    block_of,
    is_one_value,
    is_same_everywhere,
    made_apart,
    mesh_blocks,
)
from pullback.check.ranks.collectives import Step, unequal_steps
from pullback.check.ranks.commands import (
    Accept,
    Argument,
    Command,
    CotangentLayout,
    Forward,
    GivenByRank,
    MeasureCommand,
    Move,
    PullCommand,
    Pulled,
    RankPoint,
    Reply,
    Sweep,
    Values,
)
from pullback.check.ranks.crew import RanksLost
from pullback.check.ranks.failed import Failed
from pullback.check.ranks.placements import Declared
from pullback.check.ranks.slope import Slope, directions_of, extrapolated
from pullback.check.target.target import Target
from pullback.judge.run import cotangent_of

T = TypeVar("T")

FEW = {2: 8, 3: 8}  # directions for each input of a rank, by the number of ranks
DIRECTIONS = 6
STEP, COARSE_STEP = 2e-3, 2e-2
EXACT = 1e-10
UNWAITED = "a collective is not waited for"

JointPoint = tuple[Mapping[int, Tensor], ...]  # the values of each rank, by position
PointKey = frozenset[int] | str
Shared = tuple[Blocks, ...]  # of each output the ranks with one cotangent; none: each its own


class Unsettled(Exception):
    """No more calls can be made: the first left messages that later ones would take for theirs."""


class Joint:
    """A Function at the inputs of all ranks, with everything a rule may ask of it."""

    def __init__(
        self,
        target: Target,
        declared: Declared,
        size: int,
        ask: Callable[[Sequence[Command]], list[Reply]],
        reference: Callable[..., Any] | None = None,
        *,
        example: int = 0,
        is_shared: bool = False,
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        self.renew = renew  # ends the ranks: new ones answer the next question
        self.example = example  # its number, where several are given
        self.target, self.declared, self.size = target, declared, size
        self.is_shared = is_shared  # with the caller, whose processes must not be put at risk
        self.reference = reference
        self.tried = {"runs": 0}
        self.reported: set[str] = set()  # what a rule has found, for those that come later
        self._ask = ask
        self._known: dict[Any, Any] = {}

    # ---- questions ----

    def ask(self, command: Callable[[int], Command]) -> list[Reply]:
        """The answers of all ranks; raises `RanksLost`, or `Failed` where one raised."""
        if isinstance(self._known.get("first"), list) and self.is_unsettled:
            raise Unsettled(UNWAITED)
        replies = self._ask([command(rank) for rank in range(self.size)])
        self.tried["runs"] += 1
        if any(reply.raised is not None for reply in replies):
            if any(step.may_be_under_way for reply in replies for step in reply.steps):
                self.renew()  # what one has sent, and another not received, would come later
            raise Failed(replies)
        return replies

    def once(self, key: Any, compute: Callable[[], T]) -> T:
        """What was computed before, be it an error."""
        if key not in self._known:
            try:
                self._known[key] = compute()
            except (Failed, RanksLost) as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, (Failed, RanksLost)):
            raise found
        result: T = found
        return result

    # ---- what there is ----

    @cached_property
    def given(self) -> tuple[GivenByRank, ...]:
        """The arguments of each rank."""
        return tuple(reply.value for reply in self.ask(lambda rank: Accept(self.example)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return self.target.names_of(max(len(given.args) for given in self.given))

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """The arguments whose gradients are checked: those that need them on every rank."""
        needed = [{i for i, a in enumerate(g.args) if a.is_needed} for g in self.given]
        return tuple(sorted(set.intersection(*needed)))

    @cached_property
    def meant(self) -> tuple[int, ...]:
        """Those of `positions` whose gradients are to be forward's: they are no surrogates."""
        is_surrogate = self.target.intent.is_surrogate
        return tuple(p for p in self.positions if not is_surrogate(self.names[p]))

    def argument(self, rank: int, position: int) -> Argument:
        """An argument of a rank."""
        return self.given[rank].args[position]

    @cached_property
    def is_global(self) -> bool:
        """Whether inputs are DTensors, which are looked at whole."""
        return any(a.is_global for given in self.given for a in given.args)

    @cached_property
    def is_double(self) -> bool:
        """Whether the function serves float64."""
        try:
            self.ask(lambda rank: Forward(RankPoint({}, is_double=True)))
        except Failed:
            return False
        return True

    @cached_property
    def live(self) -> tuple[bool, ...]:
        """Whether a gradient can flow through each output, on any rank."""
        flags = [reply.value.live for reply in self.first]
        return tuple(any(flag) for flag in zip(*flags, strict=True))

    def is_unset(self, rank: int, output: int) -> bool:
        """Whether an output is undefined on a rank, since a `reduce` left its result on another."""
        return any(self.first[rank].value.unset[output : output + 1])

    @cached_property
    def noise(self) -> float:
        """The relative rounding error of the coarsest dtype that forward computes in."""
        finest = torch.finfo(torch.float64).eps
        own = finest if self.is_double else torch.finfo(torch.float32).eps
        if self.is_global:
            return own
        try:
            replies = self.ask(lambda rank: MeasureCommand(RankPoint({}, self.is_double)))
        except Failed:
            return own
        return max(own, *(float(reply.value) for reply in replies))

    @property
    def is_exact(self) -> bool:
        """Whether all of forward is in float64."""
        return self.noise < EXACT

    @property
    def blocks(self) -> Blocks:
        """The ranks that belong together: those of the groups that are given, or communicate."""
        return self.meshes[0]

    @cached_property
    def meshes(self) -> tuple[Blocks, ...]:
        """The ranks over which a value may be one: by all those groups, then by fewer of them."""
        if self.is_global:
            return ((tuple(range(self.size)),),)
        groups = [a.ranks for g in self.given for a in g.args if a.ranks]
        if not groups:
            groups = [s.ranks for reply in self.plain for s in reply.steps]
        if not groups:
            groups = [s.ranks for steps in self.steps for s in steps]
        return mesh_blocks(groups, self.size)

    def held_by(self, position: int) -> Blocks:
        """The ranks that hold one value of an input where it is replicated.

        These are as many as were given the same: a hint, and no proof.
        """

        def compute() -> Blocks:
            return next((b for b in self.meshes if self._is_same(position, b)), self.blocks)

        return self.once(("held by", position), compute)

    def output_held_by(self, number: int) -> tuple[Blocks, ...]:
        """The same of an output, at the inputs given, and where those of all ranks differ."""
        if len(self.meshes) == 1:
            return self.meshes
        points = [[r.value for r in self.plain], self.outputs_at(frozenset())]
        found = [
            next((b for b in self.meshes if _is_one(outputs, number, b)), None)
            for outputs in points
        ]
        return tuple(dict.fromkeys(b for b in found if b is not None)) or (self.blocks,)

    @property
    def outputs(self) -> int:
        """How many outputs there are."""
        return len(self.plain[0].value)

    @property
    def plain(self) -> list[Reply]:
        """The first forward, of the arguments as they were given."""
        return self.once("plain", lambda: self.ask(lambda rank: Forward(RankPoint({}))))

    @property
    def first(self) -> list[Reply]:
        """The first forward and backward, of the arguments as they were given."""
        return self.once("first", self._first)

    def _first(self) -> list[Reply]:
        outputs = [reply.value for reply in self.plain]
        replies = self.ask(lambda rank: PullCommand(RankPoint({}), _ones_of(outputs[rank])))
        self.tried["collectives"] = sum(len(reply.steps) for reply in replies)
        return replies

    @property
    def steps(self) -> list[tuple[Step, ...]]:
        """The collectives of each rank in the first call."""
        return [reply.steps for reply in self.first]

    @property
    def is_unsettled(self) -> bool:
        """Whether a result may not be there yet when it is used, since nobody waited for it."""
        return any(
            s.early or (not s.is_waited and s.name != "send") for steps in self.steps for s in steps
        )

    # ---- points ----

    def is_same(self, position: int) -> bool:
        """Whether ranks that may hold one value were given the same."""
        return self._is_same(position, self.held_by(position))

    def _is_same(self, position: int, blocks: Blocks) -> bool:
        return all(
            is_same_everywhere([self._start(rank, position) for rank in block]) for block in blocks
        )

    def _start(self, rank: int, position: int) -> Tensor:
        value = self.argument(rank, position).value
        assert value is not None
        if not self.is_double:
            return value
        return value.to(torch.complex128 if value.is_complex() else torch.float64)

    def point(self, key: PointKey) -> JointPoint:
        """Values that are the same on all ranks at some positions, and elsewhere are not.

        A word stands for a point that a rule has set.
        """
        found = frozenset[int]() if isinstance(key, str) else key
        return self.once(("point", key), lambda: self._point(found))

    def set_point(self, key: str, point: JointPoint) -> None:
        """Let `key` stand for a point."""
        self._known = {
            k: v for k, v in self._known.items() if not (isinstance(k, tuple) and key in k)
        }
        self._known["point", key] = point

    def _point(self, replicated: frozenset[int]) -> JointPoint:
        point = self._values(replicated, is_apart=True)
        try:
            self.forward(point)
        except Failed:
            return self._values(replicated, is_apart=False)
        return point

    def _values(self, replicated: frozenset[int], *, is_apart: bool) -> JointPoint:
        values: list[dict[int, Tensor]] = [{} for _ in range(self.size)]
        for position in self.positions:
            is_one = position in replicated or self.is_global
            move = is_apart and not is_one and self.is_same(position) and self.size > 1
            for rank in range(self.size):
                source = block_of(self.held_by(position), rank)[0] if is_one else rank
                value = self._start(source, position)
                values[rank][position] = made_apart(value, rank, position) if move else value
        return tuple(values)

    def at(self, point: JointPoint, rank: int) -> RankPoint:
        """The point of one rank, as it is sent."""
        return RankPoint(point[rank], self.is_double)

    def companions(self, rank: int, size: int) -> dict[int, Tensor]:
        """The other tensors of a rank with `size` rows, without the last row."""
        found: dict[int, Tensor] = {}
        for position, argument in enumerate(self.given[rank].args):
            value = argument.value if argument.value is not None else argument.plain
            is_row = isinstance(value, Tensor) and value.dim() > 0 and len(value) == size
            if is_row and position not in self.positions:
                found[position] = value[: size - 1].contiguous()
        return found

    def is_uneven_on_the_way(self, point: JointPoint) -> bool:
        """Whether ranks bring different sizes to a collective of forward that takes only one."""
        replies = self.ask(lambda rank: Forward(self.at(point, rank)))
        return unequal_steps([reply.steps for reply in replies]) is not None

    # ---- forward and backward ----

    def forward(self, point: JointPoint) -> list[Values]:
        """The outputs of each rank."""
        replies = self.ask(lambda rank: Forward(self.at(point, rank)))
        return [reply.value for reply in replies]

    def pull(
        self,
        point: JointPoint,
        cotangents: Sequence[Values],
        *,
        laid: CotangentLayout = CotangentLayout.PLAIN,
        delays: Sequence[float] = (),
        seconds: Sequence[Mapping[int, Tensor]] = (),
        between: JointPoint | None = None,
        needs: frozenset[int] | None = None,
    ) -> list[Pulled]:
        """The outputs and gradients of each rank; with `between`, after one more forward there.

        `needs` are the positions whose gradients are asked for, where not all are.
        """
        replies = self.ask(
            lambda rank: PullCommand(
                self.at(point, rank),
                cotangents[rank],
                laid,
                delays[rank] if delays else 0.0,
                seconds[rank] if seconds else None,
                None if between is None else self.at(between, rank),
                needs,
            )
        )
        return [reply.value for reply in replies]

    def cotangents(self, outputs: Sequence[Values], draw: int, shared: Shared = ()) -> list[Values]:
        """The `draw`-th cotangents of each rank: one for the ranks that share an output."""
        found: list[Values] = []
        for rank, values in enumerate(outputs):
            first = [block_of(blocks, rank)[0] if blocks else rank for blocks in shared]
            first = first or [rank] * len(values)
            drawn = [
                None
                if value is None or not self.live[o]
                else cotangent_of(value, 31 * first[o] + 7 * o + draw)
                for o, value in enumerate(values)
            ]
            for o, cotangent in enumerate(drawn):
                if cotangent is not None and self.is_unset(rank, o):
                    cotangent.zero_()  # nobody can use it
            found.append(tuple(drawn))
        return found

    def pulled(
        self, key: PointKey, draw: int, shared: Shared = ()
    ) -> tuple[list[Values], list[Pulled]]:
        """The cotangents of a draw, and what backward gives for them."""

        def compute() -> tuple[list[Values], list[Pulled]]:
            cotangents = self.cotangents(self.outputs_at(key), draw, shared)
            return cotangents, self.pull(self.point(key), cotangents)

        return self.once(("pulled", key, shared, draw), compute)

    def outputs_at(self, key: PointKey) -> list[Values]:
        """The outputs of each rank at a point."""
        return self.once(("forward", key), lambda: self.forward(self.point(key)))

    # ---- differences ----

    def slopes(self, key: PointKey, *, is_brief: bool = False) -> dict[tuple[int, int], Slope]:
        """The slopes at a point, by rank and position; `is_brief`: along one direction each."""
        return self.once(
            ("slopes", key, is_brief), lambda: self._slopes(self.point(key), is_brief=is_brief)
        )

    def _slopes(self, point: JointPoint, *, is_brief: bool) -> dict[tuple[int, int], Slope]:
        moves = [
            (rank, position)
            for rank in (range(1) if self.is_global else range(self.size))
            for position in self.positions
            if point[rank][position].numel()
        ]
        plans = {key: self._plan(point[key[0]][key[1]], is_brief=is_brief) for key in moves}

        def sweep(rank: int) -> Sweep:
            own = [
                Move(
                    position,
                    len(plans[mover, position][0]),
                    plans[mover, position][1],
                    plans[mover, position][0] if rank == mover or self.is_global else None,
                )
                for mover, position in moves
            ]
            return Sweep(self.at(point, rank), tuple(own))

        replies = [reply.value for reply in self.ask(sweep)]
        found: dict[tuple[int, int], Slope] = {}
        for number, key in enumerate(moves):
            directions, steps = plans[key]
            pairs = [
                [extrapolated(o, steps, self.noise) for o in reply[number]] for reply in replies
            ]
            change = tuple(tuple(c for c, _ in row) for row in pairs)
            error = tuple(tuple(e for _, e in row) for row in pairs)
            found[key] = Slope(directions, change, error)
        return found

    def _plan(self, value: Tensor, *, is_brief: bool) -> tuple[Tensor, tuple[float, ...]]:
        """The directions in which a value is moved, and the steps."""
        most = 1 if is_brief else FEW.get(self.size, DIRECTIONS)
        scale = max(1.0, float(value.abs().max()))
        step = (STEP if self.is_exact else max(COARSE_STEP, self.noise ** (1 / 3))) * scale
        return directions_of(value, most), (step, -step, step / 2, -step / 2)

    # ---- words ----

    def finding(self, rule: Rule, **facts: Any) -> Finding:
        """A finding about this function, with its name, place and inputs filled in."""
        place = self.target.place("backward", "vjp", "forward")
        if "inputs" not in facts:
            facts["inputs"] = self.words
        return Finding.made(rule, **facts).of(self.target.name, place)

    @cached_property
    def words(self) -> str:
        """The inputs in words."""
        parts = []
        for position, name in enumerate(self.names):
            each = [g.args[position].words for g in self.given if position < len(g.args)]
            told = each[0] if len(set(each)) == 1 else " | ".join(each)
            parts.append(f"{name}: {told}")
        return f"{', '.join(parts)} (on {self.size} ranks)"


def _is_one(outputs: Sequence[Values], number: int, blocks: Blocks) -> bool:
    return all(is_one_value([outputs[rank][number] for rank in block]) for block in blocks)


def _ones_of(outputs: Values) -> Values:
    return tuple(None if o is None else cotangent_of(o, 0) for o in outputs)
