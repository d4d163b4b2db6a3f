"""The ranks of a process group that is already there, as under torchrun.

Every rank of it calls the check. Rank 0 asks and judges, the others do what it asks, over a group
of their own so that nothing mixes with what the Function sends. Nobody is ended here: collectives
get a short timeout instead, after which each rank says what it stood at, and the group is not used
again.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from pullback.check.findings.report import Report
from pullback.check.ranks.collectives import install
from pullback.check.ranks.commands import Accept, Command, Reply
from pullback.check.ranks.crew import Entered, RankEnd, RanksLost, Standing
from pullback.check.ranks.rank import Rank, RankJob
from pullback.check.ranks.worker import backend_here
from pullback.errors import ExamplesError, PullbackError
from pullback.judge.run import describe

SECONDS = 10.0  # that a rank may wait in a collective of the Function's
LONG = timedelta(minutes=30)  # between the commands, while rank 0 judges
_begun = itertools.count()
TIMEOUTS = ("Timed out", "timed out", "Connection closed", "Connection reset")

UNLIMITED = (
    "the timeouts of the process groups could not be shortened in this version of PyTorch: where "
    "ranks wait in vain, they do so as long as their groups allow"
)
Ask = Callable[[Sequence[Command]], list[Reply]]


class NoGroupError(Exception):
    """The group that was there cannot be used any more."""


def is_there() -> bool:
    """Whether this process is one of several ranks: in a group, or started by torchrun."""
    if not dist.is_available():
        return False
    if dist.is_initialized():
        return dist.get_world_size() > 1
    return dist.is_torchelastic_launched() and _size() > 1


def _size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def together(job: RankJob, size: int, conduct: Callable[[Ask], Report]) -> Report:
    """The report of all ranks: rank 0 conducts, the others serve."""
    is_ours = not dist.is_initialized()
    if is_ours:
        _begin()
    try:
        if dist.get_world_size() != size:
            raise ExamplesError(
                f"`{job.target.name}` must be checked on all ranks of the process group",
                expected=f"ranks={dist.get_world_size()}",
                got=f"ranks={size}",
            )
        return _Members(job, size).report(conduct)
    finally:
        if is_ours:
            dist.destroy_process_group()


def _begin() -> None:
    """Join a group of our own, at a place where no earlier one has left its addresses."""
    distributed: Any = dist  # which does not say to type checkers that it has stores
    store, rank, size = next(distributed.rendezvous("env://"))
    place = distributed.PrefixStore(f"pullback-{next(_begun)}", store)
    local = int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", size))
    dist.init_process_group(backend_here(*local), store=place, rank=rank, world_size=size)


class _Members:
    """This rank and the others."""

    def __init__(self, job: RankJob, size: int) -> None:
        self._rank: Rank | None = Rank(job, dist.get_rank())
        self._size = size
        self._control: Any = dist.new_group(backend="gloo", timeout=LONG)
        self._limits = _Limits()
        self._is_broken = False

    def report(self, conduct: Callable[[Ask], Report]) -> Report:
        """The report, the same on every rank."""
        put_back = install()
        try:
            report = self._conduct(conduct) if dist.get_rank() == 0 else self._serve()
            return report if self._limits.are_set else report.with_notes(UNLIMITED)
        finally:
            self._limits.lift()
            put_back()
            dist.destroy_process_group(self._control)
            # As in `early`: no group may live until the process ends.
            self._control = self._rank = None

    def _conduct(self, conduct: Callable[[Ask], Report]) -> Report:
        end: Any = None
        try:
            report = conduct(self._ask)
            end = report
            return report
        except PullbackError as error:
            end = error
            raise
        finally:
            self._tell([("end", end)])

    def _serve(self) -> Report:
        while True:
            told: list[Any] = [None]
            dist.broadcast_object_list(told, src=0, group=self._control)
            kind, what = told[0]
            if kind == "end":
                if isinstance(what, Report):
                    return what
                raise what if what is not None else RuntimeError("rank 0 ended the check")
            reply = self._do(what[dist.get_rank()])
            dist.gather_object(reply, None, dst=0, group=self._control)

    def _do(self, command: Command) -> Reply:
        """The answer of this rank, whose process nothing of the function's may end."""
        self._limits.set(but_for=self._control)
        assert self._rank is not None
        try:
            return self._rank.do(command)
        except SystemExit as leaving:
            return Reply(None, describe(leaving))

    def _tell(self, told: list[Any]) -> None:
        dist.broadcast_object_list(told, src=0, group=self._control)

    def _ask(self, commands: Sequence[Command]) -> list[Reply]:
        if self._is_broken and not isinstance(commands[0], Accept):
            raise NoGroupError("ranks have waited in vain before, and the group is not used again")
        self._tell([("do", list(commands))])
        own = self._do(commands[0])
        replies: list[Any] = [None] * self._size
        dist.gather_object(own, replies, dst=0, group=self._control)
        lost = [reply for reply in replies if _is_timeout(reply)]
        if lost:
            self._is_broken = True
            raise RanksLost([_standing(rank, reply) for rank, reply in enumerate(replies)])
        return replies


class _Limits:
    """Timeouts of the groups that are there: short until they are lifted.

    PyTorch has no public name for the groups that there are, nor for their timeouts. Where it has
    other private ones than these, all timeouts stay as they are.
    """

    def __init__(self) -> None:
        self._before: dict[Any, timedelta] = {}
        self.are_set = True

    def set(self, *, but_for: Any) -> None:
        """Shorten those of all groups that there are by now, but for one."""
        try:
            for group in [*distributed_c10d._world.pg_map]:
                if group is not but_for and group not in self._before:
                    before = _timeout_of(group)
                    group.set_timeout(timedelta(seconds=SECONDS))
                    self._before[group] = before
        except AttributeError:
            self.are_set = False

    def lift(self) -> None:
        """Let all be what they were."""
        for group, timeout in self._before.items():
            group.set_timeout(timeout)
        self._before.clear()


def _timeout_of(group: Any) -> timedelta:
    """The longest timeout of a group, which may have a backend for each kind of device."""
    found: list[timedelta] = [
        group._get_backend(device).options._timeout for device in group._device_types
    ]
    return max(found)


def _is_timeout(reply: Reply) -> bool:
    """Whether a rank has waited in vain."""
    return reply.raised is not None and any(word in reply.raised.text for word in TIMEOUTS)


def _standing(rank: int, reply: Reply) -> Standing:
    last = reply.steps[-1] if reply.steps else None
    end, words = RankEnd.ANSWERED, f"was through{'' if last is None else f', after {last}'}"
    if _is_timeout(reply):
        end, words = RankEnd.WAITS, f"waited in {last}"
    elif reply.raised is not None:
        end, words = RankEnd.RAISED, f"raised {reply.raised}"
    kind = () if last is None else last.kind
    return Standing(rank, end, words, kind, entered=Entered.of(reply))
