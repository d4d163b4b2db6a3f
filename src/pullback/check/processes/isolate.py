"""A task in a process of its own, which it may end: a fork of this process, watched.

As a fork it can be any task, also on a class that is defined in a function or in a notebook. Its
process may die, hang, exit or run out of memory: what became of it is then said in words.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pullback.check.processes.confine import Fork, end_below
from pullback.check.processes.wire import GarbledError, Inbox, Outbox, PrintedOutput
from pullback.errors import first_line
from pullback.judge.progress import Progress
from pullback.judge.run import describe

# Where the code of this library and that of PyTorch stands.
OURS = str(Path(__file__).resolve().parents[1])
TORCH = str(Path(str(torch.__file__)).parent)

CROWDED = 10  # times as long by the clock, where the machine has much else to do
TUNING = 60.0  # seconds that the compilation or one trial of a kernel may take
GLANCE = 0.5  # seconds between two looks at a silent worker
MEMORY = 6 << 30  # bytes that a worker may take beyond those of its parent
LARGE = 1 << 30  # bytes beyond those at its start, which are named for a worker that did not end

GARBLED = "it wrote into a file descriptor that is not its own: the pipe of the checker"


class Died(Exception):
    """The worker ended before its work; `how` says in words what became of it.

    `is_hang` says that it did not end by itself, `is_idle` that it did nothing; `is_slow` that it
    did not stand in one call of the user's code, of the size that the user gave, but asked for
    many, or for a larger one. `is_ours` says that the checker itself has failed.
    """

    def __init__(
        self,
        how: str,
        *,
        is_hang: bool = False,
        is_idle: bool = False,
        is_slow: bool = False,
        is_ours: bool = False,
    ) -> None:
        super().__init__(how)
        self.how = how
        self.is_ours = is_ours
        self.is_hang = is_hang
        self.is_idle = is_idle
        self.is_slow = is_slow


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last word of a process that an error has ended; `is_ours`: it is one of the checker's."""

    reason: str
    is_ours: bool = False


class CannotForkError(Exception):
    """A forked worker cannot run autograd here; the message says why."""


def why_no_fork() -> str:
    """Why no worker can be forked here; empty where one can."""
    if not hasattr(os, "fork"):
        return "this system cannot fork a process"
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return "this process uses a GPU, which a forked worker cannot"
    return ""


def said(fork: Fork, watch: Watch) -> Any:
    """The next message of a worker; raises `Died` where there is none."""
    watch.wait(fork.inbox)
    try:
        return fork.inbox.recv()
    except EOFError:
        raise Died(watch.with_memory(f"it {end_of(fork.end())}")) from None
    except GarbledError:
        raise Died(GARBLED) from None


def answer_of(task: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What a task gives in a worker of its own, which it may end; raises `Died` where it does.

    `seconds` is how much work it may take, and how long it may do nothing. What it prints is not
    shown: the answer is all that comes back.
    """
    try:
        fork = Fork(lambda outbox: _answer(task, outbox), PrintedOutput(0))
    except OSError as error:
        raise Died(f"no process could be started: {error.strerror or error}") from None
    try:
        answer = said(fork, Watch(fork.pid, seconds, seconds))
    finally:
        fork.stop()
    if isinstance(answer, LastMessage):
        raise Died(answer.reason, is_ours=answer.is_ours)
    return answer


def _answer(task: Callable[[], Any], outbox: Outbox) -> None:
    torch.set_num_threads(1)  # those of the parent are not in a fork
    try:
        outbox.send(task())
    except BaseException as error:
        leave(error, outbox.send)
    end_below(os.getpid())
    os._exit(0)


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
        self._begun = self._worked = self._called = _work_of(pid)
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
        work, now = _work_of(self._pid), time.monotonic()
        family = work + _work_below(self._pid)
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


def _work_of(pid: int) -> float:
    """The processor time of a process in seconds; the clock's where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.monotonic()


def _work_below(pid: int) -> float:
    """The processor time of the processes that it has started, for which it may wait."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return sum(_work_of(int(child)) for child in file.read().split())
    except (OSError, ValueError):
        return 0.0


def memory_of(pid: int) -> int:
    """The bytes of memory that a process uses; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def leave(error: BaseException, tell: Callable[[LastMessage], Any]) -> None:
    """End a process that an error has come out of, with a last message where one is needed."""
    end_below(os.getpid())
    if isinstance(error, MemoryError):
        os._exit(77)
    if isinstance(error, SystemExit):
        os._exit(78 if error.code in (0, None) else 79)
    try:
        tell(last_message(error))
    finally:
        os._exit(80)


def last_message(error: BaseException) -> LastMessage:
    """What is said of an unexpected error: whose it is, its type and its text."""
    is_ours = isinstance(error, Exception) and raising_file(error).startswith(OURS)
    words = describe(error)
    return LastMessage(f"{words}" if is_ours else f"it raised {words}", is_ours)


def raising_file(error: BaseException) -> str:
    """The file of the code that ran last before PyTorch's: the error is of who wrote that."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return next((file for file in reversed(files) if not file.startswith(TORCH)), OURS)


def why_no_autograd() -> str:
    """Why autograd does not run in this fork: its threads stayed behind; else empty."""
    try:
        with torch.enable_grad():
            one = torch.ones((), requires_grad=True)
            torch.autograd.grad(one * 2, one)
    except RuntimeError as error:
        return first_line(error)
    return ""


def limit_memory() -> None:
    """Let this process take some gigabytes more than it has, and no more."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        return


def end_of(code: int | None) -> str:
    """What a process did at its end, by its exit code."""
    if code is None:
        return "closed its connection"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return f"was ended by {name}"
    words = {77: "ran out of memory", 78: "called sys.exit", 79: "called sys.exit"}
    words[80] = "closed a file descriptor that is not its own: the pipe of the checker"
    return words.get(code, f"exited with code {code}")
