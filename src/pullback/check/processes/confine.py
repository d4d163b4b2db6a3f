"""What holds a worker: it ends with whoever started it, and all that it has started ends with it.

A worker leads a group of processes. Its lifeline is a pipe that nobody writes to, whose other end
the parent holds: when the parent is gone, however that came about, the system itself signals the
whole group, also where the target stays in a loop of C. What the target prints, by Python or by C,
goes into a pipe as well, from which the parent shows the beginning.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import wait

from pullback.check.processes.system import has_ended, processes_below
from pullback.check.processes.wire import Inbox, PrintedOutput

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
