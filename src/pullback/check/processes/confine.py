"""What holds a worker: it ends with whoever started it, and all that it has started ends with it.

A worker leads a group of processes. Its lifeline is a pipe that nobody writes to, whose other end
the parent holds: when the parent is gone, however that came about, the system itself signals the
whole group, also where the target stays in a loop of C. What the target prints, by Python or by C,
goes into a pipe as well, from which the parent shows the beginning.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from pullback.check.processes.wire import Inbox, Outbox, PrintedOutput

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux
PATIENCE = 5.0  # seconds that a worker which has said all may take to end


@dataclass(frozen=True, slots=True)
class Ties:
    """Three pipes between a worker and its parent, each with the end to read from first."""

    life: tuple[int, int]
    said: tuple[int, int]
    printed: tuple[int, int]
    token: bytes  # that begins a message: what else comes is none

    @property
    def theirs(self) -> tuple[int, int, int]:
        """The ends of the worker."""
        return self.life[0], self.said[1], self.printed[1]

    def close(self, ends: tuple[int, ...]) -> None:
        """Close some ends of the pipes."""
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)

    def inbox(self, pid: int, output: PrintedOutput) -> Inbox:
        """In the parent, once the worker runs: where its messages come."""
        self.close(self.theirs)
        return Inbox(self.said[0], self.printed[0], self.token, lambda: has_ended(pid), output)

    @property
    def ours(self) -> tuple[int, int, int]:
        """The ends of the parent."""
        return self.life[1], self.said[0], self.printed[0]


def tie() -> Ties:
    """New pipes; raises `OSError` where no file descriptors are left, and leaves none open."""
    made: list[tuple[int, int]] = []
    try:
        for _ in range(3):
            made.append(os.pipe())
    except OSError:
        for end in (end for pipe in made for end in pipe):
            os.close(end)
        raise
    life, said, printed = made
    return Ties(life, said, printed, os.urandom(8))


class Fork:
    """A process that was forked for a task, which it does with a place to put messages into.

    Raises `OSError` where there can be none.
    """

    def __init__(self, task: Callable[[Outbox], Any], output: PrintedOutput) -> None:
        self._ties = tie()
        flush_output()
        try:
            self.pid = _forked(lambda: self._live(task))
        except OSError:
            self._ties.close((*self._ties.ours, *self._ties.theirs))
            raise
        self.inbox = self._ties.inbox(self.pid, output)
        self._code: int | None = None
        self._is_stopped = False

    def _live(self, task: Callable[[Outbox], Any]) -> None:
        ties = self._ties
        ties.close(ties.ours)
        lead(ties.life[0])
        print_into(ties.printed[1])
        task(Outbox(ties.said[1], ties.token))

    def end(self) -> int | None:
        """Its exit code, once it has said all; None where it does not end."""
        let_end(self.pid)
        is_over = has_ended(self.pid) or self._is_reaped(os.WNOHANG)
        self.stop()
        return self._code if is_over else None

    def stop(self) -> None:
        """End it, and all that it has started; what it has printed until now is shown."""
        if self._is_stopped:
            return
        self._is_stopped = True
        end_group(self.pid)
        if self._code is None and not has_ended(self.pid):
            os.kill(self.pid, signal.SIGKILL)  # it may not lead a group yet
        if self._code is None:
            self._is_reaped()
        self.inbox.drain()
        self._ties.close(self._ties.ours)

    def _is_reaped(self, options: int = 0) -> bool:
        """Whether it has ended, and was asked for its exit code."""
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # a handler of the caller's was faster
            pid, status = self.pid, 0
        if pid:
            self._code = os.waitstatus_to_exitcode(status)
        return bool(pid)


def _forked(live: Callable[[], Any]) -> int:
    """The number of a fork, which does nothing but live."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: see `why_no_autograd`
        pid = os.fork()
    if pid:
        return pid
    try:
        live()
    finally:
        os._exit(70)


# ---- in the worker ----


def lead(life: int) -> None:
    """Lead a group of processes, which the system ends when the other end of `life` is closed."""
    with contextlib.suppress(OSError):  # it leads one already
        os.setpgid(0, 0)
    _adopt()
    end_with(life, -os.getpgrp())


def end_with(life: int, owner: int) -> None:
    """Let the system end a process, or a group (negative), when the other end of `life` is closed.

    That is so when the parent is gone, however that came about.
    """
    try:
        import fcntl

        signal.signal(signal.SIGIO, signal.SIG_DFL)  # which ends a process
        fcntl.fcntl(life, fcntl.F_SETOWN, owner)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    except (ImportError, AttributeError, OSError):
        return  # a system that cannot
    if wait([life], 0):  # it was closed before anybody looked
        os._exit(0)


def _adopt() -> None:
    """Let what the target starts stay below this process, also when who started it has ended."""
    with contextlib.suppress(ImportError, OSError, AttributeError):  # a system that cannot
        import ctypes

        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def print_into(end: int) -> None:
    """Let what Python and C print go into a pipe, and let nothing be read."""
    for number in (1, 2):
        os.dup2(end, number)
    if end > 2:
        os.close(end)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing > 2:
        os.close(nothing)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout, sys.stderr = _written_to(1), _written_to(2)


def _written_to(end: int) -> io.TextIOWrapper:
    file = io.BufferedWriter(io.FileIO(end, "w", closefd=False))
    return io.TextIOWrapper(file, errors="replace", line_buffering=True)


# ---- in the parent ----


def end_below(pid: int) -> None:
    """End the processes that one has started, and those that they have, also in other groups."""
    ended: set[int] = set()
    while left := processes_below(pid) - ended:  # one may start another meanwhile
        for each in left:
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)
        ended |= left


def processes_below(pid: int) -> set[int]:
    """The processes below one, where the system says which."""
    found: set[int] = set()
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError), open(path) as file:
            found |= {int(child) for child in file.read().split()}
    return found.union(*map(processes_below, found))


def end_group(leader: int) -> None:
    """End a worker and the processes that it leads, before it is asked for its exit code."""
    end_below(leader)
    with contextlib.suppress(OSError):
        os.killpg(leader, signal.SIGKILL)


def signal_group(leader: int, number: int) -> None:
    """Send a signal to a worker and to the processes that it leads or has started."""
    with contextlib.suppress(OSError):
        os.killpg(leader, number)
    for each in processes_below(leader):
        with contextlib.suppress(OSError):
            os.kill(each, number)


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it can still be asked for its exit code."""
    try:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, pid, options) is not None
    except ChildProcessError:
        return True
    except AttributeError:  # not on this system: the end of its messages tells
        return False


def let_end(pid: int) -> None:
    """Wait a while for a child that is at its end."""
    latest = time.monotonic() + (PATIENCE if hasattr(os, "waitid") else 0.1)
    while not has_ended(pid) and time.monotonic() < latest:
        time.sleep(0.002)


def flush_output() -> None:
    """Write what Python holds back, so that a fork does not write it again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, or closed
            stream.flush()
