"""One rank: it holds the user's function and its own arguments, and does what it is asked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pullback.capture.places import is_users
from pullback.check.findings.facts import Gradient, Output
from pullback.check.ranks.collectives import (
    RankState,
    Slot,
    WatchedCollectives,
    watching_collectives,
)
from pullback.check.ranks.commands import (
    CHECK,
    Accept,
    Command,
    CotangentLayout,
    Forward,
    GivenByRank,
    MeasureCommand,
    ProgramCommand,
    PullCommand,
    Pulled,
    Ran,
    RankPoint,
    Reply,
    Sweep,
    Values,
    Wrap,
)
from pullback.check.ranks.given import group_made, rank_inputs, sent_argument
from pullback.check.ranks.said import LOGGED
from pullback.check.ranks.spread import (
    is_spread,
    laid_cotangent,
    put_like,
    replicated_parts,
    whole_of,
)
from pullback.check.ranks.wrapping import wrapped_gradients
from pullback.check.subject.twice import OnceError, leads_to_refusal
from pullback.check.target.registration import near
from pullback.check.target.target import Target
from pullback.function.isolation import drawing_from, seeded
from pullback.judge.example import Example, can_differ, example_of, tensors_in
from pullback.judge.reference import PrecisionWatcher
from pullback.judge.run import describe

LEAF_IN_PLACE = "a leaf Variable that requires grad"
SEED = 20_260_203


@dataclass(frozen=True, slots=True)
class RankJob:
    """What all ranks check: the target, and what makes their inputs."""

    target: Target
    inputs: Any


class Refused(Exception):
    """What the user's code raised, and in which phase."""

    def __init__(self, error: Exception, phase: str) -> None:
        super().__init__(str(error))
        self.error, self.phase = error, phase


class Rank:
    """One rank of the joint function."""

    def __init__(self, job: RankJob, number: int, slot: Slot | None = None) -> None:
        self.job, self.number, self.slot = job, number, slot
        self._example: Example | None = None
        self._names: tuple[str, ...] = ()
        self._through_clone = False

    def do(self, command: Command) -> Reply:
        """The answer to a command; what the user's code raises is an answer."""
        watched = WatchedCollectives(self.slot, getattr(command, "delay", 0.0))
        if self.slot is not None:
            self.slot.tell(RankState.WORKS, 0)
        try:
            with warnings.catch_warnings(), watching_collectives(watched):
                warnings.simplefilter("ignore")
                value = self._value(command, watched)
            return Reply(value, steps=watched.log())
        except Refused as refusal:
            place = _place_of(refusal.error)
            raised = describe(refusal.error)
            raised = replace(raised, text=LOGGED.sub("", raised.text))
            return Reply(None, raised, refusal.phase, place, watched.log())
        except Exception as error:  # of ours, and not of the function's
            return Reply(None, describe(error), CHECK, "", watched.log())
        finally:
            if self.slot is not None:
                self.slot.tell(RankState.IDLE, len(watched.steps))

    def _value(self, command: Command, watched: WatchedCollectives) -> Any:
        if isinstance(command, Accept):
            return self._accept(command.example)
        if isinstance(command, Forward):
            return self._outputs(self._at(command.point))
        if isinstance(command, MeasureCommand):
            return self._noise(self._at(command.point))
        if isinstance(command, Sweep):
            return self._swept(command, watched)
        if isinstance(command, Wrap):
            return self._wrapped(command)
        if isinstance(command, ProgramCommand):
            return self._ran(command)
        return self._pulled(command, watched)

    # ---- arguments ----

    def _accept(self, number: int) -> GivenByRank:
        with raising("inputs"), drawing_from(SEED):
            tuples = rank_inputs(self.job.target, self.job.inputs, self.number)
        given = tuple(group_made(arg) for arg in tuples[min(number, len(tuples) - 1)])
        self._example = example_of(given)
        self._names = self.job.target.names_of(len(given))
        self._through_clone = False
        args = tuple(
            sent_argument(arg, i in self._example.needs) for i, arg in enumerate(self._example.args)
        )
        return GivenByRank(args, len(tuples))

    def _at(self, point: RankPoint) -> Example:
        assert self._example is not None
        example = self._example.double() if point.is_double else self._example
        for position, value in point.values.items():
            old = example.args[position]
            example = example.put(position, put_like(old, value), example.label)
        return example

    # ---- calls ----

    def _call(self, args: tuple[Any, ...]) -> Any:
        with raising("forward"), seeded(SEED):
            return self.job.target.call(*args)

    def _outputs(self, example: Example) -> Values:
        result = self._call(example.fresh(needs=frozenset()))
        return tuple(whole_of(t.detach()) for t in tensors_in(result))

    def _noise(self, example: Example) -> float:
        with PrecisionWatcher() as precision:
            result = self._call(example.fresh(needs=frozenset()))
        noise: float = precision.of(tensors_in(result))
        return noise

    def _swept(self, command: Sweep, watched: WatchedCollectives) -> list[tuple[Tensor, ...]]:
        example = self._at(command.point)
        found: list[tuple[Tensor, ...]] = []
        for move in command.moves:
            rows: list[Values] = []
            start = whole_of(example.args[move.position])
            for number in range(move.count):
                for step in move.steps:
                    at = example
                    if move.directions is not None:
                        moved = start + step * move.directions[number]
                        old = example.args[move.position]
                        at = example.put(move.position, put_like(old, moved), example.label)
                    watched.forget()
                    rows.append(self._outputs(at))
            found.append(tuple(_stacked([row[i] for row in rows]) for i in range(len(rows[0]))))
        return found

    def _pulled(self, command: PullCommand, watched: WatchedCollectives) -> Pulled:
        example = self._at(command.point)
        if command.needs is not None:
            example = replace(example, needs=command.needs)
        memory = Memory()
        args, result = self._run(example, memory)
        if command.between is not None:
            self._run(self._at(command.between), Memory())
        outputs = tensors_in(result)
        leaves = {i: args[i] for i in sorted(example.needs)}
        told = tuple(whole_of(t.detach()) for t in outputs)
        live = tuple(t.requires_grad for t in outputs)
        spread = tuple(map(is_spread, outputs))
        left = {memory for step in watched.steps if step.is_left_unset for memory in step.writes}
        unset = tuple(type(t) is Tensor and _memory_of(t) in left for t in outputs)
        cotangents = tuple(
            laid_cotangent(output, cotangent, command.laid, is_needed=command.seconds is not None)
            for output, cotangent in zip(outputs, command.cotangents, strict=True)
        )
        used = [i for i, c in enumerate(cotangents) if c is not None and outputs[i].requires_grad]
        memory.take("cotangent", {i: cotangents[i] for i in used}, lambda i: False)
        if not used:
            return Pulled(told, dict.fromkeys(leaves), live=live, unset=unset, spread=spread)
        watched.phase = "backward"
        graph = command.seconds is not None
        with raising("backward"):
            grads = torch.autograd.grad(
                [outputs[i] for i in used],
                list(leaves.values()),
                [cotangents[i] for i in used],
                create_graph=graph,
                allow_unused=True,
            )
        found = dict(zip(leaves, grads, strict=True))
        seconds = _second(command, found, leaves, cotangents) if graph else None
        written = memory.written(watched)
        flat = {i: None if g is None else whole_of(g.detach()) for i, g in found.items()}
        named: dict[Output | Gradient, Any] = {Output(i): t for i, t in enumerate(outputs)}
        named |= {Gradient(self._names[i]): g for i, g in found.items()}
        parts = tuple(replicated_parts(named))
        return Pulled(told, flat, seconds, written, parts, live, unset, spread)

    def _run(self, example: Example, memory: Memory) -> tuple[tuple[Any, ...], Any]:
        """The leaves, and the result; a function that writes its inputs gets clones of them."""
        args = example.fresh()
        passed = tuple(_passed(arg, self._through_clone) for arg in args)
        memory.take("input", {i: passed[i] for i in sorted(example.needs)}, self._is_given_away)
        try:
            with memory.saving():
                return args, self._call(passed)
        except Refused as refusal:
            if LEAF_IN_PLACE not in str(refusal.error) or self._through_clone:
                raise
            self._through_clone = True
            memory.forget()
            return self._run(example, memory)

    def _is_given_away(self, position: int) -> bool:
        return self._through_clone or self.job.target.intent.is_donated(self._names[position])

    def _ran(self, command: ProgramCommand) -> Ran:
        target = self.job.target
        thing = target.function if target.is_function else target.thing
        space: dict[str, Any] = {"torch": torch, "dist": dist, "rank": self.number}
        if not command.name.startswith("torch."):
            space[command.name] = thing
        has_failed = False
        with raising("program"), seeded(command.seed):
            try:
                exec(compile(command.text, "<repro>", "exec"), space)
            except AssertionError:
                if "is_right" not in space:  # it is the function's
                    raise
                has_failed = True
        found = Ran(has_failed, float(space["expected"]), float(space["got"]))
        space.clear()  # its functions hold it, and it holds groups: see `existing`
        return found

    def _wrapped(self, command: Wrap) -> Pulled:
        example = self._at(command.point)
        with raising("backward"):
            found = wrapped_gradients(
                self.job.target.call,
                example,
                command,
                lambda o, c: laid_cotangent(o, c, CotangentLayout.PLAIN),
            )
        return Pulled((), found)


# ---- what collectives write ----


class Memory:
    """Where the tensors of a call lie that a collective must not write into."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[str, int]] = {}
        self._saved: set[int] = set()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # a tensor, and what it was

    def forget(self) -> None:
        """Begin anew."""
        for known in (self._owners, self._saved, self._kept):
            known.clear()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Note what is saved for backward in the block."""

        def pack(tensor: Tensor) -> Tensor:
            if type(tensor) is Tensor:
                self._saved.add(self._keep(tensor))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def take(self, what: str, tensors: Mapping[int, Any], is_free: Callable[[int], bool]) -> None:
        """Note tensors by number, but for those that may be written."""
        for number, tensor in tensors.items():
            if type(tensor) in (Tensor, torch.nn.Parameter) and not is_free(number):
                self._owners[self._keep(tensor)] = what, number

    def _keep(self, tensor: Tensor) -> int:
        """Keep what a tensor is; its memory."""
        memory = _memory_of(tensor)
        self._kept.setdefault(memory, (tensor.detach(), tensor.detach().clone()))
        return memory

    def _has_changed(self, memory: int) -> bool:
        now, before = self._kept[memory]
        return not torch.equal(now, before)

    def written(self, watched: WatchedCollectives) -> tuple[tuple[str, int, Any], ...]:
        """What the collectives wrote, with the step that did."""
        found: dict[tuple[str, int], Any] = {}
        for step in watched.log():
            for memory in step.writes:
                if memory not in self._kept or not self._has_changed(memory):
                    continue
                if memory in self._owners:
                    what, number = self._owners[memory]
                    is_early = what == "cotangent" and step.phase == "forward"
                    if not is_early:
                        found.setdefault((what, number), step)
                elif memory in self._saved and step.phase == "backward":
                    found.setdefault(("saved", -1), step)
        return tuple((what, number, step) for (what, number), step in found.items())


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _second(
    command: PullCommand,
    grads: Mapping[int, Tensor | None],
    leaves: Mapping[int, Tensor],
    cotangents: Values,
) -> dict[str, dict[int, Tensor | None]]:
    """The derivatives of `<gradients, command.seconds>` by cotangents and by inputs."""
    assert command.seconds is not None
    pairs = [(g, command.seconds[i]) for i, g in grads.items() if g is not None]
    tracked = [(g, u) for g, u in pairs if g.requires_grad]
    by = {i: c for i, c in enumerate(cotangents) if c is not None}
    if not tracked:
        return {"cotangents": dict.fromkeys(by), "inputs": dict.fromkeys(leaves)}
    with raising("second"):
        if any(leads_to_refusal(g) for g, _ in tracked):
            raise OnceError("a Function on the way can be differentiated once")
        found = torch.autograd.grad(
            [g for g, _ in tracked],
            [*by.values(), *leaves.values()],
            [u.to(dtype=g.dtype, device=g.device) for g, u in tracked],
            allow_unused=True,
        )
    flat = [None if t is None else whole_of(t.detach()) for t in found]
    return {
        "cotangents": dict(zip(by, flat[: len(by)], strict=True)),
        "inputs": dict(zip(leaves, flat[len(by) :], strict=True)),
    }


# ---- what is raised ----


@contextmanager
def raising(phase: str) -> Iterator[None]:
    """Give what the user's code raises in the block its phase."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        raise Refused(error, phase) from error


def _place_of(error: BaseException) -> str:
    """The deepest line of the user's that an error came from."""
    found = ""
    entry = error.__traceback__
    while entry is not None:
        if is_users(entry.tb_frame):
            found = f"{near(entry.tb_frame.f_code.co_filename)}:{entry.tb_lineno}"
        entry = entry.tb_next
    return found


def _passed(arg: Any, through_clone: bool) -> Any:
    return arg.clone() if through_clone and can_differ(arg) else arg


def _stacked(values: list[Tensor | None]) -> Tensor:
    return torch.stack([v for v in values if v is not None])
