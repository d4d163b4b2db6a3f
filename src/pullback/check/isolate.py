"""The target may crash: rules are tried in a worker process, and the run goes on without it.

The worker is a fork of this process, so that any class can be checked, also one defined in a
function or in a notebook. When it dies, hangs, exits or runs out of memory, the rule it was at gets
a finding, and a new worker goes on with the next rule. Where a fork is not possible (another
system, or a GPU already in use by this process), the rules run here, and the report says so.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from pullback.check.work import SECONDS, Job, Message, work
from pullback.judge.progress import Progress, shared_progress

# A rule is asked to end after `work.SECONDS`. It is ended after so many seconds of work more, and
# after the time of so many calls more; or when it has done nothing for so many seconds.
GRACE = 4.0
CALLS = 20
IDLE = {"quick": 5.0, "standard": 8.0, "deep": 60.0}
CROWDED = 10  # times as long by the clock, where the machine has much else to do
GLANCE = 0.5  # seconds between two looks at a silent worker
MEMORY = 6 << 30


class Died(Exception):
    """The worker ended before its work; `how` says in words what became of it.

    `is_hang` says that it did not end by itself, `is_idle` that it did nothing; `is_slow` that it
    did not stand in one call of the user's code, of the size that the user gave, but asked for
    many, or for a larger one.
    """

    def __init__(
        self, how: str, *, is_hang: bool = False, is_idle: bool = False, is_slow: bool = False
    ) -> None:
        super().__init__(how)
        self.how = how
        self.is_hang = is_hang
        self.is_idle = is_idle
        self.is_slow = is_slow


class CannotForkError(Exception):
    """A forked worker cannot run autograd here; the message says why."""


def can_fork() -> str:
    """Why no worker can be forked here; empty where one can."""
    if not hasattr(os, "fork"):
        return "this system cannot fork a process"
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return "this process uses a GPU, which a forked worker cannot"
    return ""


def messages(job: Job, first: int, seconds: float = 0.0) -> Iterator[Message]:
    """What one worker says, from rule number `first` on; raises `Died` where it ends early.

    `seconds` is how long one call takes, where that is known already.
    """
    context: Any = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    seen = Seen(shared_progress(), max(example.size for example in job.examples))
    sys.stdout.flush()
    sys.stderr.flush()
    process = context.Process(target=_worker, args=(job, theirs, first), daemon=False)
    process.start()
    theirs.close()
    try:
        while True:
            busy = SECONDS[job.profile] + GRACE + CALLS * seconds
            Watch(process.pid, busy, IDLE[job.profile], seen).wait(ours)
            try:
                message = ours.recv()
            except EOFError:
                process.join(5)
                raise Died(end_of(process.exitcode)) from None
            if message.kind == "refused":
                raise CannotForkError(message.reason)
            if message.kind == "accepted":
                seconds = message.seconds
            yield message
            if message.kind in ("end", "unfit"):
                return
    finally:
        _stop(process)
        ours.close()


def answer_of(task: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What a task gives in a worker of its own, which it may end; raises `Died` where it does.

    `seconds` is how much work it may take, and how long it may do nothing.
    """
    context: Any = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(task, theirs), daemon=False)
    process.start()
    theirs.close()
    try:
        Watch(process.pid, seconds, seconds).wait(ours)
        return ours.recv()
    except EOFError:
        process.join(5)
        raise Died(end_of(process.exitcode)) from None
    finally:
        _stop(process)
        ours.close()


def _answer(task: Callable[[], Any], pipe: Connection) -> None:
    torch.set_num_threads(1)  # those of the parent are not in a fork
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)  # the answer is all that is told
    pipe.send(task())
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
        self._start = self._rested = time.monotonic()
        self._calls = -1

    def wait(self, pipe: Connection) -> None:
        """Wait for a message; raises `Died` where the worker has had its time without one."""
        while not pipe.poll(GLANCE):
            self._look()

    def _look(self) -> None:
        work, now = _work_of(self._pid), time.monotonic()
        family = work + _work_below(self._pid)
        if abs(family - self._worked) > 0.02 * GLANCE:
            self._worked, self._rested = family, now
        if self._seen is not None and self._seen.progress.seen[0] != self._calls:
            self._calls, self._called = self._seen.progress.seen[0], work
        if work - self._begun > self._busy or now - self._start > CROWDED * self._busy:
            is_slow = work - self._called < self._busy / 2 or self._is_larger
            raise Died(
                f"it did not end within {self._busy:.0f} s of work", is_hang=True, is_slow=is_slow
            )
        if now - self._rested > self._idle:
            raise Died(
                f"it did not end, and did nothing for {self._idle:.0f} s",
                is_hang=True,
                is_idle=True,
                is_slow=self._is_larger,
            )

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


def _worker(job: Job, pipe: Connection, first: int) -> None:
    """The life of a worker: it ends with `os._exit`, so that nothing of the parent's is run."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        limit_memory()
        gc.freeze()  # what the parent holds is not looked at by the collections of the rules
        refusal = refusal_here()
        if refusal:
            pipe.send(Message("refused", reason=refusal))
        else:
            work(job, pipe.send, first)
        pipe.close()
    except MemoryError:
        os._exit(77)
    except SystemExit as leaving:
        os._exit(78 if leaving.code in (0, None) else 79)
    except BaseException:
        os._exit(80)
    os._exit(0)


def refusal_here() -> str:
    """Why autograd does not run in this fork: its threads stayed behind; else empty."""
    try:
        with torch.enable_grad():
            one = torch.ones((), requires_grad=True)
            torch.autograd.grad(one * 2, one)
    except RuntimeError as error:
        return str(error).splitlines()[0]
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
    """What became of a process, by its exit code."""
    if code is None:
        return "it closed its connection"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return f"it was ended by {name}"
    words = {77: "it ran out of memory", 78: "it called sys.exit", 79: "it called sys.exit"}
    return words.get(code, f"it exited with code {code}")


def _stop(process: Any) -> None:
    if process.is_alive():
        process.terminate()
        process.join(0.2)
    if process.is_alive():
        process.kill()
    process.join(5)
    time.sleep(0)
