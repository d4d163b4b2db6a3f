"""Run one piece of work in a process of its own, with a limit of time: its answer or how it ended.

The process is forked from one that has imported torch and the checker, so that a run costs what
the work costs, and no subject sees what another has imported.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def apart(work: Callable[[], Any], *, path: Path, seconds: float) -> tuple[Any, str]:
    """What `work` gives, as plain values, with `path` last on `sys.path`; or why there is nothing.

    The second value is empty when there is an answer, else how the process ended.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _work(work, path, write)
    os.close(write)
    text, late = _read(read, time.monotonic() + seconds)
    # Processes that the child has started go with it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return None, f"did not end in {seconds:.0f} s"
    if text:
        answer = json.loads(text)
        return answer["answer"], answer["error"]
    return None, f"ended with {os.waitstatus_to_exitcode(status)}"


def cpu() -> float:
    """CPU seconds of this process and of those that it has started and waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def _work(work: Callable[[], Any], path: Path, write: int) -> None:
    """In the child: answer through the pipe, and end here whatever happens."""
    try:
        os.setsid()
        faulthandler.disable()
        quiet = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(quiet, standard)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        warnings.simplefilter("ignore")
        sys.path.append(str(path))
        # A process that is started from here finds the packages too.
        os.environ["PYTHONPATH"] = os.pathsep.join([*_paths(), str(path)])
        os.environ["PYTHONWARNINGS"] = "ignore"
        answer, error = None, ""
        try:
            answer = work()
        except Exception as failure:
            error = f"{type(failure).__name__}: {str(failure).strip()}"[:600]
        with os.fdopen(write, "w") as pipe:
            json.dump({"answer": answer, "error": error}, pipe)
        os._exit(0)
    finally:
        os._exit(1)


def _paths() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _read(read: int, end: float) -> tuple[str, bool]:
    """What comes through the pipe until it is closed, and whether the time ran out before."""
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            os.close(read)
            return "", True
        part = os.read(read, 65536)
        if not part:
            os.close(read)
            return b"".join(parts).decode(), False
        parts.append(part)
