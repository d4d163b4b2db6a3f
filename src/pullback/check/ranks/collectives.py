"""What a rank sends and receives, seen from inside its process.

The methods of `ProcessGroup` and the waiting of `Work` are replaced while a call is looked at, so
that every collective of Python's is seen, however the user's module has imported it: with what, on
which ranks, from which line. The functional collectives are operators, which a dispatch mode sees,
also in a backward that PyTorch has in C++. What DDP does in C++ is not seen. The step
that a rank is in stands in memory which who started it reads, so that it is known when the rank
cannot say so any more.
"""

from __future__ import annotations

import functools
import json
import mmap
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from pullback.capture.places import is_users
from pullback.check.ranks.underway import Underway, too_early, underway
from pullback.check.target.registration import near
from pullback.function.slots import PlainDispatchMode, without_modes
from pullback.judge.example import dtype_name, tensors_in

SLOT = mmap.ALLOCATIONGRANULARITY  # bytes for each rank
MOST = 500  # letters of one step
_HEAD = "QQQQQ"  # state, steps, turns and polls so far, bytes of the text
_START = struct.calcsize(_HEAD)

# The methods of a group, the names that users know them by, and which argument is written.
METHODS: dict[str, tuple[str, int | None]] = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce_coalesced", 0),
    "reduce": ("reduce", 0),
    "broadcast": ("broadcast", 0),
    "allgather": ("all_gather", 0),
    "_allgather_base": ("all_gather_into_tensor", 0),
    "all_gather_single": ("all_gather_into_tensor", 0),
    "allgather_coalesced": ("all_gather_coalesced", 0),
    "gather": ("gather", 0),
    "scatter": ("scatter", 0),
    "reduce_scatter": ("reduce_scatter", 0),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 0),
    "reduce_scatter_single": ("reduce_scatter_tensor", 0),
    "alltoall_base": ("all_to_all_single", 0),
    "all_to_all_single": ("all_to_all_single", 0),
    "alltoall": ("all_to_all", 0),
    "send": ("send", None),
    "recv": ("recv", 0),
    "recv_anysource": ("recv", 0),
    "barrier": ("barrier", None),
}
POINT_TO_POINT = ("send", "recv")
SUMS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced")
# Those in which all ranks must bring, or get, as much.
EVEN = frozenset(SUMS) - {"reduce_scatter", "all_reduce_coalesced"}
EVEN |= {"broadcast", "gather", "scatter", "all_gather_into_tensor"}
# The functional collectives, as operators.
OPERATORS = "_c10d_functional"
GROUPS = "c10d"  # and those of the methods of groups
WAIT = "wait_tensor"
WAITS = ("wait", "synchronize", "get_future")
POLL = "is_completed"


class RankState(IntEnum):
    """What a rank does."""

    IDLE = 0
    WORKS = 1
    WAITS = 2
    POLLS = 3  # it has asked whether a collective is over, and it was not


@dataclass(frozen=True, slots=True)
class Step:
    """One collective of one rank: its name, how much of what it brings, on which ranks, and where.

    `phase` says whether forward or backward made it.
    """

    name: str
    ranks: tuple[int, ...]
    count: int
    dtype: str
    words: str
    place: str = ""
    phase: str = "forward"
    tensor: str = ""  # the dtype and shape of the first that it brings
    is_from_any: bool = False
    writes: frozenset[int] = frozenset()  # the memory that it writes
    is_waited: bool = True
    is_left_unset: bool = False  # what it writes is undefined here: another rank has the result
    early: str = ""  # what came to its memory before somebody waited

    @property
    def kind(self) -> tuple[Any, ...]:
        """What the members of a group must have in common in one collective."""
        return (self.name, self.count if self.name in EVEN else -1, self.dtype)

    @property
    def is_collective(self) -> bool:
        """Whether all ranks of the group take part."""
        return self.name not in POINT_TO_POINT

    @property
    def may_be_under_way(self) -> bool:
        """Whether its message may still come when a call has ended by an error."""
        return not self.is_collective or not self.is_waited

    def __str__(self) -> str:
        return f"{self.words} at {self.place}" if self.place else self.words


@dataclass(frozen=True, slots=True)
class SeenRank:
    """What is seen of a rank from outside."""

    state: RankState
    steps: int = 0  # collectives that it has begun
    turns: int = 0  # times that it came to a collective, or out of one
    polls: int = 0  # times that it has asked in vain whether one is over
    kind: tuple[Any, ...] = ()
    text: str = ""
    tensor: str = ""
    ranks: tuple[int, ...] = ()


class Slot:
    """The state of one rank, in a file without a name that is memory to both sides."""

    def __init__(self, file: int, rank: int) -> None:
        self._memory = mmap.mmap(file, SLOT, offset=rank * SLOT)

    def close(self) -> None:
        """Give up the memory, and the file that it holds open."""
        self._memory.close()

    def tell(self, state: RankState, steps: int, step: Step | None = None) -> None:
        """Say what the rank does now, and the collective that it is in or was in last."""
        told = [] if step is None else [step.kind, str(step)[:MOST], step.tensor, step.ranks]
        words = json.dumps(told).encode()
        self._memory[_START : _START + len(words)] = words
        _, _, turns, polls, _ = struct.unpack_from(_HEAD, self._memory)
        is_poll = state is RankState.POLLS
        counts = steps, turns + (not is_poll), polls + is_poll, len(words)
        struct.pack_into(_HEAD, self._memory, 0, int(state), *counts)

    @property
    def seen(self) -> SeenRank:
        """What the rank does, how many collectives it has begun, and the last of them."""
        state, steps, turns, polls, size = struct.unpack_from(_HEAD, self._memory)
        try:
            told = json.loads(self._memory[_START : _START + size].decode() or "[]")
        except ValueError:  # it is being written
            told = []
        kind, text, tensor, ranks = told or ((), "", "", ())
        return SeenRank(
            RankState(state), steps, turns, polls, tuple(kind), text, tensor, tuple(ranks)
        )


@dataclass(slots=True)
class WatchedCollectives:
    """The collectives of one call."""

    slot: Slot | None = None
    delay: float = 0.0  # seconds that this rank is late for each
    phase: str = "forward"
    steps: list[Step] = field(default_factory=list)
    works: dict[int, tuple[Any, int]] = field(default_factory=dict)  # by identity, with the step
    waited: set[int] = field(default_factory=set)
    underway: dict[int, Underway] = field(default_factory=dict)  # by step, until it is waited for
    early: dict[int, str] = field(default_factory=dict)  # by step

    def log(self) -> tuple[Step, ...]:
        """The steps, each with whether it was waited for, and in time."""
        unwaited = {number for key, (_, number) in self.works.items() if key not in self.waited}
        return tuple(
            replace(step, is_waited=number not in unwaited, early=self.early.get(number, ""))
            for number, step in enumerate(self.steps)
        )

    def forget(self) -> None:
        """Begin anew; handles are kept, for one that is given up may end what it stands for."""
        for known in (self.steps, self.underway, self.early):
            known.clear()

    def see(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        """Note an operator that comes to the memory of a collective before it is waited for."""
        for number, memory in self.underway.items():
            does = too_early(func, args, kwargs, memory)
            place = _place(3) if does else ""  # none where the check itself looks
            if place and number not in self.early:
                name = func.name().partition("::")[2].partition(".")[0]
                self.early[number] = f"`{name}` {does} its memory at {place}, before that"

    def begin(self, step: Step) -> None:
        """Note a step that begins."""
        self.steps.append(step)
        if self.slot is not None:
            self.slot.tell(RankState.WAITS, len(self.steps), step)
        if self.delay:
            time.sleep(self.delay)

    def goes_on(self) -> None:
        """Note that the rank is out of a collective."""
        if self.slot is not None:
            self.slot.tell(RankState.WORKS, len(self.steps), self.steps[-1] if self.steps else None)

    def waits_for(self, work: Any, state: RankState = RankState.WAITS) -> None:
        """Note that somebody waits for a collective, or has asked in vain whether it is over."""
        number = self.works.get(id(work), (None, -1))[1]
        if state is RankState.WAITS:
            self.waited.add(id(work))
            self.underway.pop(number, None)
        if self.slot is not None and number >= 0:
            self.slot.tell(state, len(self.steps), self.steps[number])


_watched: WatchedCollectives | None = None


@contextmanager
def watching_collectives(watched: WatchedCollectives) -> Iterator[WatchedCollectives]:
    """See the collectives that this process makes in the block."""
    global _watched
    before, _watched = _watched, watched
    try:
        with _Operators(watched):
            yield watched
    finally:
        _watched = before


def install() -> Callable[[], None]:
    """Replace the methods of groups and of handles; what comes back puts them back."""
    kept: list[tuple[Any, str, Any]] = []

    def keep(owner: Any, method: str) -> Any:
        kept.append((owner, method, vars(owner)[method]))  # what `getattr` gives is no method
        return getattr(owner, method)

    for method, (name, written) in METHODS.items():
        if hasattr(dist.ProcessGroup, method):
            original = keep(dist.ProcessGroup, method)
            setattr(dist.ProcessGroup, method, _seen(original, name, written, method))
    for method in (*WAITS, POLL):
        seen = _polled if method == POLL else _awaited
        setattr(dist.Work, method, seen(keep(dist.Work, method)))

    def put_back() -> None:
        for owner, method, original in kept:
            setattr(owner, method, original)

    return put_back


def _seen(original: Any, name: str, written: int | None, method: str) -> Any:
    @functools.wraps(original)
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        watched = _watched
        if watched is None:
            return original(group, *args, **kwargs)
        watched.begin(_step(group, args, name, written, method, watched.phase))
        try:
            with without_modes():  # PyTorch keeps for ever a group that a mode has been given
                work = original(group, *args, **kwargs)
        finally:
            watched.goes_on()
        if isinstance(work, dist.Work):
            number = len(watched.steps) - 1
            watched.works[id(work)] = work, number
            watched.underway[number] = underway(_written(args, written), _brought(name, args))
        return work

    return call


def _awaited(original: Any) -> Any:
    @functools.wraps(original)
    def call(work: Any, *args: Any, **kwargs: Any) -> Any:
        watched = _watched
        if watched is None:
            return original(work, *args, **kwargs)
        watched.waits_for(work)
        try:
            return original(work, *args, **kwargs)
        finally:
            watched.goes_on()

    return call


def _polled(original: Any) -> Any:
    @functools.wraps(original)
    def call(work: Any) -> Any:
        watched = _watched
        is_over = original(work)
        if watched is not None:
            watched.waits_for(work, RankState.WAITS if is_over else RankState.POLLS)
            if is_over:
                watched.goes_on()
        return is_over

    return call


class _Operators(PlainDispatchMode):  # type: ignore[misc]
    """Notes the functional collectives, which are operators."""

    def __init__(self, watched: WatchedCollectives) -> None:
        super().__init__()
        self._seen_by = watched

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if func.namespace != OPERATORS:
            if self._seen_by.underway and func.namespace != GROUPS:
                self._seen_by.see(func, args, kwargs)
            return NotImplemented if waits_by_itself(types) else func(*args, **given)
        watched = self._seen_by
        name = func.name().partition("::")[2].rstrip("_").removesuffix("_out")
        group = next((ranks_of_name(a) for a in reversed(args) if is_group_name(a)), None)
        if group is not None:
            place = _place(2)
            watched.begin(made_step(name, group, tensors_in(args[0]), place, watched.phase))
        elif name == WAIT and watched.slot is not None and watched.steps:
            watched.slot.tell(RankState.WAITS, len(watched.steps), watched.steps[-1])
        try:
            return func(*args, **given)
        finally:
            watched.goes_on()


def waits_by_itself(types: Any) -> bool:
    """Whether a tensor is among them that waits when it is used, in a handler of its own."""
    functional: Any = sys.modules.get("torch.distributed._functional_collectives")
    return functional is not None and functional.AsyncCollectiveTensor in types


def arrived(tensor: Tensor) -> Tensor:
    """A tensor whose numbers are there: what a functional collective gives is waited for."""
    unsettled: Any = tensor
    while waits_by_itself((type(unsettled),)):
        unsettled = unsettled.wait()
    settled: Tensor = unsettled
    return settled


def is_group_name(arg: Any) -> bool:
    """Whether an argument of a functional collective stands for a group."""
    return isinstance(arg, dist.ProcessGroup) or (isinstance(arg, str) and arg not in REDUCTIONS)


REDUCTIONS = ("sum", "avg", "max", "min", "product", "band", "bor", "bxor", "premul_sum")


def ranks_of_name(group: Any) -> tuple[int, ...]:
    """The ranks of a group that is given as such or by its name; all where it is not known."""
    if isinstance(group, str):
        try:
            groups: Any = distributed_c10d
            group = groups._resolve_process_group(group)
        except (RuntimeError, ValueError):
            return tuple(range(dist.get_world_size()))
    return group_ranks(group)


def _step(
    group: Any, args: tuple[Any, ...], name: str, written: int | None, method: str, phase: str
) -> Step:
    ranks = group_ranks(group)
    step = made_step(name, ranks, _brought(name, args), _place(3), phase)
    if name in POINT_TO_POINT and len(args) > 1 and isinstance(args[1], int):
        who = f" {'to' if name == 'send' else 'from'} rank {ranks[args[1]]}"
        step = replace(step, words=step.words + who)
    writes = frozenset(t.untyped_storage().data_ptr() for t in _written(args, written))
    root = getattr(args[1], "rootRank", None) if name == "reduce" and len(args) > 1 else None
    return replace(
        step,
        is_from_any=method == "recv_anysource",
        writes=writes,
        is_left_unset=root is not None and ranks[root] != dist.get_rank(),
    )


def _written(args: tuple[Any, ...], position: int | None) -> list[Tensor]:
    """The tensors that a collective writes."""
    return tensors_in(args[position]) if position is not None and len(args) > position else []


def made_step(
    name: str, ranks: tuple[int, ...], own: Sequence[Tensor], place: str, phase: str
) -> Step:
    """A collective that a rank makes, with what it brings."""
    first = own[0] if own else None
    shape = "" if first is None else f"{dtype_name(first.dtype)}{list(first.shape)}"
    who = f" over ranks {', '.join(map(str, ranks))}" if name not in POINT_TO_POINT else ""
    count, dtype = sum(t.numel() for t in own), "" if first is None else dtype_name(first.dtype)
    return Step(name, ranks, count, dtype, f"{name}({shape}){who}", place, phase, shape)


def _brought(name: str, args: tuple[Any, ...]) -> list[Tensor]:
    """What a rank brings to a collective, or, where one rank brings all, what it gets of it."""
    has_two = ("gather" in name or "scatter" in name or "all_to_all" in name) and len(args) > 1
    return tensors_in(args[1] if has_two and name != "scatter" else args[0] if args else ())


def group_ranks(group: Any) -> tuple[int, ...]:
    """The ranks of a group, as all ranks are counted."""
    return tuple(dist.get_process_group_ranks(group))


def _place(above: int) -> str:
    """The user's line that asks for a collective, some frames above; none where C++ asks for it.

    What has called the check, and is still there in a fork, asks for nothing.
    """
    frame: Any = sys._getframe(above)
    while frame is not None and frame.f_globals.get("__package__") != __package__:
        if is_users(frame):
            return f"{near(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def unequal_steps(
    logs: Sequence[Sequence[Step]],
) -> tuple[tuple[int, Step], tuple[int, Step]] | None:
    """Two ranks and their steps that are not the same collective, in the same place of a group."""
    for group in {step.ranks for log in logs for step in log if step.is_collective}:
        members = [r for r in group if r < len(logs)]
        own = {r: [s for s in logs[r] if s.ranks == group and s.is_collective] for r in members}
        for rank in members[1:]:
            for first, second in zip(own[members[0]], own[rank], strict=False):
                if first.kind != second.kind:
                    return (members[0], first), (rank, second)
    return None
