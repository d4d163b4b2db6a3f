"""What the system says of a process: how long it has computed, and what holds it back.

Nothing that runs in the process can change the first, and only others the second.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pullback.check.processes.system import processes_below

TICK = 0.01  # seconds, to which the system rounds what threads have computed that are gone
GONE = "gone"

Computed = Mapping[tuple[int, str], float]


def computed(pid: int) -> Computed:
    """Seconds that each thread of a process, and of those that it started, has computed.

    What threads and children have computed that are gone stands under `GONE`, for each process.
    Other programs add nothing to it. Empty where the system does not say.
    """
    found: dict[tuple[int, str], float] = {}
    for one in (pid, *processes_below(pid)):
        try:
            live = {(one, thread): _of_thread(one, thread) for thread in _threads(one)}
            stat = Path(f"/proc/{one}/stat").read_text("ascii").rpartition(")")[2].split()
        except (OSError, ValueError, IndexError):
            continue
        ticks = sum(map(int, stat[11:15]))  # user and system, its own and those of its children
        gone = ticks / os.sysconf("SC_CLK_TCK") - sum(live.values())
        found |= {**live, (one, GONE): gone}
    return found


def busiest(before: Computed, after: Computed) -> float | None:
    """Seconds that the thread has computed meanwhile that has computed most."""
    spent = [
        seconds - before.get(key, 0.0) - (2 * TICK if key[1] == GONE else 0.0)
        for key, seconds in after.items()
    ]
    return max(spent) if before and spent else None


def held_back(pid: int) -> tuple[bool, frozenset[int], int] | None:
    """Whether a process is stopped, where it may run, and how it must wait for others."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
        return (
            state in "Tt",
            frozenset(os.sched_getaffinity(pid)),
            os.getpriority(os.PRIO_PROCESS, pid),
        )
    except (OSError, AttributeError, IndexError):
        return None


def _threads(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/task")


def _of_thread(pid: int, thread: str) -> float:
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text("ascii").split()[0]) / 1e9
