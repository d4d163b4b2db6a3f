"""What the system says of processes: which are there, their work and their memory."""

from __future__ import annotations

import contextlib
import glob
import os
import time


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it can still be asked for its exit code."""
    try:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, pid, options) is not None
    except ChildProcessError:
        return True
    except AttributeError:  # not on this system: the end of its messages tells
        return False


def children_of(pid: int) -> set[int]:
    """The processes that one has started, where the system says which."""
    found: set[int] = set()
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError), open(path) as file:
            found |= {int(child) for child in file.read().split()}
    return found


def processes_below(pid: int) -> set[int]:
    """The processes below one, where the system says which."""
    found = children_of(pid)
    return found.union(*map(processes_below, found))


def work_of(pid: int) -> float:
    """The processor time of a process in seconds; the clock's where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.monotonic()


def work_below(pid: int) -> float:
    """The processor time of the processes below it, for which it may wait, as for a build."""
    return sum(map(work_of, processes_below(pid)))


def memory_of(pid: int) -> int:
    """The bytes of memory that a process uses; 0 where the system does not say."""
    return _pages(pid)[1]


def reserved_of(pid: int) -> int:
    """The bytes of addresses that a process has, used or not; 0 where the system does not say."""
    return _pages(pid)[0]


def _pages(pid: int) -> tuple[int, int]:
    try:
        with open(f"/proc/{pid}/statm") as file:
            reserved, used = file.read().split()[:2]
        size = os.sysconf("SC_PAGE_SIZE")
        return int(reserved) * size, int(used) * size
    except (OSError, ValueError):
        return 0, 0
