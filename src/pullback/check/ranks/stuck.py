"""Whether ranks that have not answered can still be expected to.

Ranks that wait for each other do nothing, but for a thread of gloo's that looks a hundred times a
second whether there is anything to receive. Ranks that a busy machine holds up do nothing either:
they stand in the queue for a processor. So the time that counts is that in which a rank could have
worked, and what counts as work is more than that thread does. Linux tells both of every thread.

A rank that computes while others wait may be slow, or have something compiled, or be in a loop that
has no end. What counts there is processor time of its own, in which it was seen to stand in the
user's code from one look to the next.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pullback.check.processes.system import work_of
from pullback.check.ranks.collectives import RankState, SeenRank, Slot
from pullback.check.ranks.commands import Reply
from pullback.check.ranks.whereabouts import AskedRank, RankStack

HELD_UP = 0.5  # seconds between two looks at most: more is a machine that stood still
STUCK = 2.0  # seconds in which all that are left wait for each other, and nothing moves
SURE = 0.7  # the same where one of them will not come any more
RESTS = 8.0  # seconds without work of a rank that is in no collective
WORK = 0.02  # seconds of a processor that are work
POLLING = 0.01  # of a processor, which threads take that look whether there is anything to do
POLLED = 0.5  # seconds since a rank last asked whether a collective is over
ASKED = 1.0  # seconds of work after which a rank is asked where it stands


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """A thread so far: its seconds on a processor and in the queue for one, and how often it ran.

    `can_run` says that it stands in the queue, on a processor, or before a disk.
    """

    can_run: bool
    ran: float
    queued: float = 0.0
    turns: int = 0


Threads = dict[int, ThreadTimes]  # by number


@dataclass(frozen=True, slots=True)
class EndlessWork:
    """The seconds of a processor that a rank has worked, and the line; empty where not known."""

    seconds: float
    place: str = ""


class Stretch:
    """The work of one rank since it last came to a collective, or out of one."""

    def __init__(self, pid: int, asked: AskedRank) -> None:
        self._pid, self._asked = pid, asked
        self._turns, self._polls, self._polled_at = -1, 0, -math.inf
        self._begun = self._asked_at = 0.0  # in seconds of its processor
        self._is_asked = False
        self._stood: tuple[RankStack, float] | None = None  # when it was asked before
        self._common: RankStack | None = None  # of all that it has answered
        self._short = 0.0  # seconds so far, where it was not asked
        self.own = 0.0  # seconds so far in the user's code
        self._slowest = 0.0  # the same of the longest before

    @property
    def slowest(self) -> float:
        """The most seconds so far in which nothing but the user's code is known to have worked."""
        return max(self._slowest, self.own or self._short)

    @property
    def so_far(self) -> EndlessWork:
        """What it has worked, and at which of the user's lines it has stood all the time."""
        place = "" if self._common is None else self._common.place
        return EndlessWork(work_of(self._pid) - self._begun, place)

    def look(self, seen: SeenRank, now: float) -> None:
        """See what the rank does; where it works for long, ask where it stands."""
        if seen.polls != self._polls:
            self._polls, self._polled_at = seen.polls, now
        work = work_of(self._pid)
        if seen.turns != self._turns:
            self._slowest = self.slowest
            self._turns, self._begun, self._is_asked, self._stood = seen.turns, work, False, None
            self._short, self.own, self._common = 0.0, 0.0, None
        if seen.state not in (RankState.WORKS, RankState.POLLS) or work - self._begun < ASKED:
            self._short = work - self._begun
            return
        stands = self._asked.told() if self._is_asked else None
        if stands is not None:
            if self._stood is not None and self._stood[0].is_own and stands.is_own:
                self.own += self._asked_at - self._stood[1]
            self._stood = stands, self._asked_at
            self._common = stands if self._common is None else self._common.common(stands)
        if stands is not None or not self._is_asked:
            self._is_asked, self._asked_at = True, work
            self._asked.ask()

    def is_waiting(self, seen: SeenRank, now: float) -> bool:
        """Whether the rank waits in a collective, or asks again and again whether one is over."""
        is_polling = seen.state is RankState.POLLS and now - self._polled_at < POLLED
        return seen.state is RankState.WAITS or is_polling


@dataclass(frozen=True, slots=True)
class Patience:
    """The seconds that a watch may take, and those that one rank may work in the user's code.

    `alone` says that this holds also where no other rank waits.
    """

    longest: float
    own: float = math.inf
    alone: bool = False


class StuckWatch:
    """Looks at ranks that have not answered, again and again.

    Time in which this process was held up, or a rank that could have run, does not count.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        pids: Sequence[int],
        asked: Sequence[AskedRank],
        patience: Patience,
    ) -> None:
        self._slots, self._pids, self._patience = slots, pids, patience
        self._stretches = [Stretch(*one) for one in zip(pids, asked, strict=True)]
        self._looked = time.monotonic()
        self._left = patience.longest
        self._last: Threads = {}  # at the look before
        self._key: Any = None  # what the ranks stood at when something last moved,
        self._then: Threads = {}  # with their threads,
        self._still = 0.0  # and the seconds since, as they count
        self.endless: dict[int, EndlessWork] = {}  # of the ranks that would work on and on

    @property
    def slowest(self) -> float:
        """The most seconds that a rank has worked in the user's code without a collective."""
        return max(one.slowest for one in self._stretches)

    def is_stuck(self, left: Sequence[int], replies: Mapping[int, Reply]) -> bool:
        """Whether none of those that are left will ever answer, or too late."""
        looked = time.monotonic()
        passed = min(looked - self._looked, HELD_UP)
        self._looked = looked
        seen = {rank: self._slots[rank].seen for rank in left}
        for rank in left:
            self._stretches[rank].look(seen[rank], looked)
        working = [r for r in left if not self._stretches[r].is_waiting(seen[r], looked)]
        threads = self._threads(seen, working)
        counted = max(0.0, passed - held_up(self._last, threads, passed))
        self._left -= counted
        self._still += counted
        self._last = threads
        key = ([one.turns for one in seen.values()], len(replies))
        if key != self._key or has_worked(self._then, threads, self._still):
            self._key, self._then, self._still = key, threads, 0.0
        if self._left < 0 or self._are_endless(working, len(working) < len(self._slots)):
            self.endless = {rank: self._stretches[rank].so_far for rank in working}
            return True
        if not left or working:
            return bool(left) and self._still > RESTS
        has_lost = any(reply.raised is not None for reply in replies.values())
        return self._still > (SURE if has_lost else STUCK)

    def _are_endless(self, working: Sequence[int], has_waiting: bool) -> bool:
        """Whether all that work have done so for too long; one that has not may set them free."""
        is_due = has_waiting or self._patience.alone
        own = [self._stretches[rank].own for rank in working]
        return is_due and bool(own) and min(own) > self._patience.own

    def _threads(self, seen: Mapping[int, SeenRank], working: Sequence[int]) -> Threads:
        """The threads of ranks, but for those that ask again and again whether they may go on."""
        found: Threads = {}
        for rank, one in seen.items():
            found |= threads_of(self._pids[rank])
            if one.state is RankState.POLLS and rank not in working:
                found.pop(self._pids[rank], None)
        return found


def held_up(before: Threads, now: Threads, passed: float) -> float:
    """Of the seconds between two looks, those in which a thread was not let run."""
    waits = [0.0]
    for number, thread in now.items():
        if number in before:
            old = before[number]
            is_kept = old.can_run and thread.can_run and old.turns == thread.turns
            waits.append(passed if is_kept else thread.queued - old.queued)
    return max(waits)


def has_worked(before: Threads, now: Threads, seconds: float) -> bool:
    """Whether threads have done more than to look whether there is anything to do."""
    nothing = ThreadTimes(can_run=False, ran=0.0)
    work = [thread.ran - before.get(number, nothing).ran for number, thread in now.items()]
    return any(one > WORK + POLLING * seconds for one in work)


def threads_of(pid: int) -> Threads:
    """Every thread of a process and of those that it has started; none where nothing tells."""
    found: Threads = {}
    try:
        for path in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                found[int(path.name)] = _times(path)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, ValueError, IndexError):
        return found
    for child in children:
        found |= threads_of(int(child))
    return found


def _times(path: Path) -> ThreadTimes:
    fields = (path / "stat").read_text().rpartition(")")[2].split()
    can_run = fields[0] in "RD"
    try:
        ran, queued, turns = map(int, (path / "schedstat").read_text().split())
    except (OSError, ValueError):  # a kernel that does not count these
        ticks = int(fields[11]) + int(fields[12])
        return ThreadTimes(can_run, ticks / os.sysconf("SC_CLK_TCK"))
    return ThreadTimes(can_run, ran / 1e9, queued / 1e9, turns)
