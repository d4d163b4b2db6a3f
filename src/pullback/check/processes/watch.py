"""How long a worker may take: in work, and at rest."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pullback.check.processes.endings import Died
from pullback.check.processes.system import memory_of, work_below, work_of
from pullback.check.processes.wire import Inbox
from pullback.judge.progress import Progress

CROWDED = 10  # times as long by the clock, where the machine has much else to do
TUNING = 60.0  # seconds that the compilation or one trial of a kernel may take
GLANCE = 0.5  # seconds between two looks at a silent worker
LARGE = 1 << 30  # bytes beyond those at its start, which are named for a worker that did not end


@dataclass(frozen=True, slots=True)
class Seen:
    """The calls that a worker makes, and how large those may be that the user gave."""

    progress: Progress
    size: int


class Watch:
    """A look at a worker from now on: it may work for `busy` seconds, and rest for `idle` ones.

    Work is counted in processor time, so that a crowded machine is no hang, up to a point.
    """

    def __init__(self, pid: int, busy: float, idle: float, seen: Seen | None = None) -> None:
        self._pid, self._busy, self._idle, self._seen = pid, busy, idle, seen
        self._begun = self._worked = self._called = work_of(pid)
        self._memory, self._most = memory_of(pid), 0
        self._start = self._rested = time.monotonic()
        self._calls = -1
        self._tuned, self._tuning_since = 0, self._start

    def wait(self, inbox: Inbox) -> None:
        """Wait for a message; raises `Died` where the worker has had its time without one."""
        while not inbox.poll(GLANCE):
            self._look()

    def with_memory(self, how: str) -> str:
        """How a worker has ended, with the memory that it took on the way, where that is much."""
        grown = self._most - self._memory
        return how if grown < LARGE else f"{how}, and took {grown / (1 << 30):.1f} GiB of memory"

    def _look(self) -> None:
        work, now = work_of(self._pid), time.monotonic()
        family = work + work_below(self._pid)
        self._most = max(self._most, memory_of(self._pid))
        if abs(family - self._worked) > 0.02 * GLANCE:
            self._worked, self._rested = family, now
        if self._seen is not None and self._seen.progress.seen[0] != self._calls:
            self._calls, self._called = self._seen.progress.seen[0], work
        if self._seen is not None and self._tunes(work, now):
            return
        if work - self._begun > self._busy or now - self._start > CROWDED * self._busy:
            is_slow = work - self._called < self._busy / 2 or self._is_larger
            how = self.with_memory(f"it did not end within {self._busy:.0f} s of work")
            raise Died(how, is_hang=True, is_slow=is_slow)
        if now - self._rested > self._idle:
            how = self.with_memory(f"it did not end, and did nothing for {self._idle:.0f} s")
            raise Died(how, is_hang=True, is_idle=True, is_slow=self._is_larger)

    def _tunes(self, work: float, now: float) -> bool:
        """Whether a kernel is compiled or tuned, or was since the last look: that is no hang."""
        assert self._seen is not None
        count, is_tuning = self._seen.progress.tuned
        if count != self._tuned:
            self._tuned, self._tuning_since = count, now
            self._begun = self._called = work
            self._start = self._rested = now
            return True
        return is_tuning and now - self._tuning_since < TUNING

    @property
    def _is_larger(self) -> bool:
        """Whether the call that is under way has larger arguments than the user gave."""
        return self._seen is not None and self._seen.progress.seen[1] > self._seen.size
