"""One rank: it holds the user's function and its own arguments, and does what it is asked."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pullback.capture.places import is_users
from pullback.check.groups import GroupOf
from pullback.check.ranks.collectives import (
    Slot,
    State,
    Watched,
    ranks_of,
    watching_collectives,
)
from pullback.check.ranks.commands import (
    CHECK,
    Accept,
    Argument,
    Command,
    Forward,
    Given,
    Laid,
    Local,
    Measure,
    Point,
    Pull,
    Pulled,
    Reply,
    Sweep,
    Values,
    Wrap,
)
from pullback.check.ranks.wrapping import wrapped_gradients
from pullback.check.registration import near
from pullback.check.target import Target
from pullback.function.isolation import drawing_from, seeded
from pullback.judge.example import Example, can_differ, copy_of, example_of, tensors_in, words_of
from pullback.judge.reference import Precision
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
        watched = Watched(self.slot, getattr(command, "delay", 0.0))
        if self.slot is not None:
            self.slot.tell(State.WORKS, 0)
        try:
            with warnings.catch_warnings(), watching_collectives(watched):
                warnings.simplefilter("ignore")
                value = self._value(command, watched)
            return Reply(value, steps=watched.log())
        except Refused as refusal:
            place = _place_of(refusal.error)
            raised = describe(refusal.error)
            return Reply(None, raised, refusal.phase, place, watched.log())
        except Exception as error:  # of ours, and not of the function's
            return Reply(None, describe(error), CHECK, "", watched.log())
        finally:
            if self.slot is not None:
                self.slot.tell(State.IDLE, len(watched.steps))

    def _value(self, command: Command, watched: Watched) -> Any:
        if isinstance(command, Accept):
            return self._accept()
        if isinstance(command, Forward):
            with silenced() if command.is_quiet else nullcontext():
                return self._outputs(self._at(command.point))
        if isinstance(command, Measure):
            return self._noise(self._at(command.point))
        if isinstance(command, Sweep):
            return self._swept(command, watched)
        if isinstance(command, Wrap):
            return self._wrapped(command)
        return self._pulled(command, watched)

    # ---- arguments ----

    def _accept(self) -> Given:
        with raising("inputs"), drawing_from(SEED):
            tuples = rank_inputs(self.job.target, self.job.inputs, self.number)
        first = tuple(_group_made(arg) for arg in tuples[0])
        self._example = example_of(first)
        self._names = self.job.target.names_of(len(first))
        args = tuple(
            _argument(arg, i in self._example.needs) for i, arg in enumerate(self._example.args)
        )
        return Given(args, len(tuples))

    def _at(self, point: Point) -> Example:
        assert self._example is not None
        example = self._example.double() if point.is_double else self._example
        for position, value in point.values.items():
            old = example.args[position]
            example = example.put(position, _like(old, value), example.label)
        return example

    # ---- calls ----

    def _call(self, args: tuple[Any, ...]) -> Any:
        with raising("forward"), seeded(SEED):
            return self.job.target.call(*args)

    def _outputs(self, example: Example) -> Values:
        result = self._call(example.fresh(needs=frozenset()))
        return tuple(_whole(t.detach()) for t in tensors_in(result))

    def _noise(self, example: Example) -> float:
        with Precision() as precision:
            result = self._call(example.fresh(needs=frozenset()))
        noise: float = precision.of(tensors_in(result))
        return noise

    def _swept(self, command: Sweep, watched: Watched) -> list[tuple[Tensor, ...]]:
        example = self._at(command.point)
        found: list[tuple[Tensor, ...]] = []
        for move in command.moves:
            rows: list[Values] = []
            start = _value_of(example.args[move.position])
            for number in range(move.count):
                for step in move.steps:
                    at = example
                    if move.directions is not None:
                        moved = start + step * move.directions[number]
                        old = example.args[move.position]
                        at = example.put(move.position, _like(old, moved), example.label)
                    watched.steps.clear()
                    rows.append(self._outputs(at))
            found.append(tuple(_stacked([row[i] for row in rows]) for i in range(len(rows[0]))))
        return found

    def _pulled(self, command: Pull, watched: Watched) -> Pulled:
        example = self._at(command.point)
        memory = Memory()
        args, result = self._run(example, memory)
        outputs = tensors_in(result)
        leaves = {i: args[i] for i in sorted(example.needs)}
        told = tuple(_whole(t.detach()) for t in outputs)
        live = tuple(t.requires_grad for t in outputs)
        cotangents = tuple(
            _cotangent(output, cotangent, command.laid, is_needed=command.seconds is not None)
            for output, cotangent in zip(outputs, command.cotangents, strict=True)
        )
        used = [i for i, c in enumerate(cotangents) if c is not None and outputs[i].requires_grad]
        memory.take("cotangent", {i: cotangents[i] for i in used}, lambda i: False)
        if not used:
            return Pulled(told, dict.fromkeys(leaves), live=live)
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
        flat = {i: None if g is None else _whole(g.detach()) for i, g in found.items()}
        named = {f"gradient of `{self._names[i]}`": g for i, g in found.items()}
        said = {f"output {i}": t for i, t in enumerate(outputs)}
        return Pulled(told, flat, seconds, written, tuple(_locals({**said, **named})), live)

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

    def _wrapped(self, command: Wrap) -> Pulled:
        example = self._at(command.point)
        with raising("backward"):
            found = wrapped_gradients(
                self.job.target.call, example, command, lambda o, c: _cotangent(o, c, Laid.PLAIN)
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
        memory = tensor.untyped_storage().data_ptr()
        self._kept.setdefault(memory, (tensor.detach(), tensor.detach().clone()))
        return memory

    def _has_changed(self, memory: int) -> bool:
        now, before = self._kept[memory]
        return not torch.equal(now, before)

    def written(self, watched: Watched) -> tuple[tuple[str, int, Any], ...]:
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


# ---- inputs ----


def rank_inputs(target: Target, inputs: Any, rank: int) -> list[tuple[Any, ...]]:
    """The arguments of one rank, one tuple for each example."""
    if inputs is None:
        inputs = getattr(target.function or target.thing, "examples", None)
    if callable(inputs):
        inputs = inputs(rank) if _takes_rank(inputs) else inputs()
    if isinstance(inputs, RankTuples):
        return list(inputs.of[rank])
    if isinstance(inputs, Tensor):
        return [(inputs,)]
    if isinstance(inputs, list) and inputs and all(isinstance(item, tuple) for item in inputs):
        return inputs
    if isinstance(inputs, tuple):
        return [inputs]
    raise TypeError(
        "inputs must be a tuple of arguments, a list of such tuples, or a function, perhaps of the "
        f"rank, that gives one; got {type(inputs).__name__}"
    )


@dataclass(frozen=True, slots=True)
class RankTuples:
    """The arguments of every rank: a list of tuples for each."""

    of: tuple[tuple[tuple[Any, ...], ...], ...]


def _takes_rank(factory: Any) -> bool:
    """Whether a function must be given the rank."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in kinds and (p.default is p.empty or p.name == "rank") for p in parameters)


_groups: dict[tuple[int, ...], Any] = {}


def _group_made(arg: Any) -> Any:
    """A group of the ranks that a recording names, made once; else the argument."""
    if not isinstance(arg, GroupOf):
        return arg
    if arg.ranks == tuple(range(dist.get_world_size())):
        return dist.group.WORLD
    if arg.ranks not in _groups:
        _groups[arg.ranks] = dist.new_group(list(arg.ranks), use_local_synchronization=True)
    return _groups[arg.ranks]


def _argument(arg: Any, is_needed: bool) -> Argument:
    if can_differ(arg):
        return Argument(words_of(arg), _whole(arg.detach()), is_needed, _is_spread(arg), None)
    if isinstance(arg, dist.ProcessGroup):
        return Argument("a process group", ranks=ranks_of(arg))
    sent = arg.detach() if isinstance(arg, Tensor) else arg
    is_plain = isinstance(sent, (Tensor, bool, int, float, complex, str, type(None), torch.dtype))
    numbers = frozenset(_numbers(arg))
    return Argument(words_of(arg), plain=sent if is_plain else None, numbers=numbers)


def _numbers(arg: Any) -> Iterator[int]:
    """The whole numbers in an argument: in containers, and in a tensor of one for each rank."""
    if isinstance(arg, Tensor):
        if arg.shape == (dist.get_world_size(),) and not can_differ(arg):
            yield from map(int, arg.tolist())
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from _numbers(item)
    elif isinstance(arg, dict):
        yield from _numbers(list(arg.values()))
    elif isinstance(arg, int) and not isinstance(arg, bool):
        yield arg


# ---- DTensor ----


def _is_spread(value: Any) -> bool:
    """Whether a tensor is a DTensor."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _whole(tensor: Tensor) -> Tensor:
    """A tensor as it is sent: all of it."""
    if _is_spread(tensor):
        spread: Any = tensor
        tensor = spread.full_tensor()
    return tensor.detach().cpu()


def _value_of(tensor: Tensor) -> Tensor:
    return _whole(tensor)


def _like(old: Any, value: Tensor) -> Tensor:
    """A value in the place of another one: on its device, and spread as it is."""
    if not _is_spread(old):
        return value.to(old.device)
    from torch.distributed.tensor import DTensor, Partial, Replicate  # only where it is in use

    placements = old.placements
    whole = [Replicate() if isinstance(p, Partial) else p for p in placements]
    made = DTensor.from_local(value, old.device_mesh, [Replicate()] * len(whole), run_check=False)
    return made.redistribute(placements=placements).detach()


def _locals(tensors: Mapping[str, Any]) -> Iterator[Local]:
    """The parts of DTensors that are said to be the same on all ranks."""
    for what, tensor in tensors.items():
        if _is_spread(tensor):
            kinds = {type(p).__name__ for p in tensor.placements}
            if kinds == {"Replicate"}:
                yield Local(tensor.detach().to_local().cpu(), what)


# ---- cotangents ----


def _cotangent(
    output: Tensor, given: Tensor | None, laid: Laid, *, is_needed: bool = False
) -> Tensor | None:
    """The cotangent of an output, in memory as it is asked for."""
    if given is None:
        return None
    if _is_spread(output):
        spread: Any = output
        made = _like(_without_partial(spread), given.to(output.dtype))
        return made.requires_grad_(is_needed)
    made = copy_of(given).to(device=output.device, dtype=output.dtype)
    if laid is Laid.TRANSPOSED:
        made = _transposed(made)
    elif laid is Laid.EXPANDED and made.numel():
        made = made.flatten()[:1].reshape([1] * made.dim()).expand(made.shape)
    return made.requires_grad_(is_needed)


def _without_partial(output: Any) -> Any:
    """A DTensor as its cotangent is placed: that of a sum is the same for each part."""
    from torch.distributed.tensor import Partial, Replicate  # only where it is in use

    if not any(isinstance(p, Partial) for p in output.placements):
        return output
    placements = [Replicate() if isinstance(p, Partial) else p for p in output.placements]
    return output.detach().redistribute(placements=placements)


def _transposed(tensor: Tensor) -> Tensor:
    """The same numbers in another order in memory."""
    if tensor.dim() >= 2:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if tensor.dim() == 1:
        wide = tensor.new_zeros(2 * tensor.numel())
        wide[::2] = tensor
        return wide[::2]
    return tensor


def _second(
    command: Pull,
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
        found = torch.autograd.grad(
            [g for g, _ in tracked],
            [*by.values(), *leaves.values()],
            [u.to(dtype=g.dtype, device=g.device) for g, u in tracked],
            allow_unused=True,
        )
    flat = [None if t is None else _whole(t.detach()) for t in found]
    return {
        "cotangents": dict(zip(by, flat[: len(by)], strict=True)),
        "inputs": dict(zip(leaves, flat[len(by) :], strict=True)),
    }


@contextmanager
def silenced() -> Iterator[None]:
    """Let nothing be said on standard error: C++ ends a process with a message there."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


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
