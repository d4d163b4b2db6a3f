"""Whether ranks that have not answered can still be expected to.

Ranks that wait for each other do nothing, but for a thread of gloo's that looks a hundred times a
second whether there is anything to receive. Ranks that a busy machine holds up do nothing either:
they stand in the queue for a processor. So the time that counts is that in which a rank could have
worked, and what counts as work is more than that thread does. Linux tells both of every thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pullback.check.ranks.collectives import RankState, Slot
from pullback.check.ranks.commands import Reply

HELD_UP = 0.5  # seconds between two looks at most: more is a machine that stood still
STUCK = 2.0  # seconds in which all that are left wait for each other, and nothing moves
SURE = 0.7  # the same where one of them will not come any more
RESTS = 8.0  # seconds without work of a rank that is in no collective
WORK = 0.02  # seconds of a processor that are work
POLLING = 0.01  # of a processor, which threads take that look whether there is anything to do


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


class StuckWatch:
    """Looks at ranks that have not answered, again and again.

    Time in which this process was held up, or a rank that could have run, does not count.
    """

    def __init__(
        self, slots: Sequence[Slot], pids: Sequence[int], longest: float, busy: float = math.inf
    ) -> None:
        self._slots, self._pids, self._busy = slots, pids, busy
        self._same = 0.0  # seconds since a rank last came to a collective, as they count,
        self.slowest = 0.0  # and the most of them so far
        self._looked = time.monotonic()
        self._left = longest
        self._last: Threads = {}  # at the look before
        self._key: Any = None  # what the ranks stood at when something last moved,
        self._then: Threads = {}  # with their threads,
        self._still = 0.0  # and the seconds since, as they count

    def is_stuck(self, left: Sequence[int], replies: dict[int, Reply]) -> bool:
        """Whether none of those that are left will ever answer, or too late."""
        looked = time.monotonic()
        passed = min(looked - self._looked, HELD_UP)
        self._looked = looked
        seen = [self._slots[rank].seen for rank in left]
        threads = {n: t for rank in left for n, t in threads_of(self._pids[rank]).items()}
        self._left -= passed
        counted = max(0.0, passed - held_up(self._last, threads, passed))
        self._still += counted
        self._same += counted
        self.slowest = max(self.slowest, self._same)
        self._last = threads
        key = ([(one.state, one.steps) for one in seen], len(replies))
        if key != self._key:
            self._same = 0.0
        if key != self._key or has_worked(self._then, threads, self._still):
            self._key, self._then, self._still = key, threads, 0.0
        if self._left < 0 or self._same > self._busy:
            return True
        if not left or any(one.state is not RankState.WAITS for one in seen):
            return bool(left) and self._still > RESTS
        has_lost = any(reply.raised is not None for reply in replies.values())
        return self._still > (SURE if has_lost else STUCK)


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
