"""Work in several processes, each of which does a part of it one after the other and tells of each.

A process that is started costs seconds, most of all on a GPU. So each gets a share of the names,
and prints a line when one is done; a process that ends early loses what it has not told of.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

MARK = "result: "


def in_groups(
    module: str, names: Sequence[str], jobs: int, more: Sequence[str] = (), **environment: str
) -> Iterator[tuple[str, Any]]:
    """Each name with what the program `module` tells of it; None where it tells nothing."""
    told: queue.Queue[tuple[str, Any] | None] = queue.Queue()
    shares = [names[k::jobs] for k in range(jobs) if names[k::jobs]]
    for share in shares:
        command = [sys.executable, "-m", module, *more, "--part", json.dumps(share)]
        threading.Thread(target=_follow, args=(command, environment, told), daemon=True).start()
    left = list(names)
    for _ in shares:
        while (one := told.get()) is not None:
            left.remove(one[0])
            yield one
    yield from ((name, None) for name in left)


def _follow(command: Sequence[str], environment: Mapping[str, str], told: queue.Queue[Any]) -> None:
    """Pass on what one process tells, and then that it has ended."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(MARK):
            told.put(tuple(json.loads(line.removeprefix(MARK))))
    process.wait()
    told.put(None)


def tell_part(part: str, work: Callable[[str], Any]) -> None:
    """In such a process: do each of its share, and tell of it."""
    for name in json.loads(part):
        try:
            result = work(name)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(MARK + json.dumps([name, result]), flush=True)
