"""A Python that is started afresh, finds what this one finds, and calls one function."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCE = str(Path(__file__).resolve().parents[3])


def python_calling(function: str, *args: int | str | bytes) -> list[str]:
    """The command that calls `package.module.function` with plain arguments.

    The folder that it is started in is no place to import from: others may write to it.
    """
    module, _, name = function.rpartition(".")
    found = [SOURCE, *(place for place in sys.path if place)]
    code = f"import sys; sys.path[:] = {found}; from {module} import {name}; {name}(*{args})"
    return [sys.executable, "-c", code]


def started(
    command: Sequence[str],
    keeps: Sequence[int],
    output: int | None,
    environment: Mapping[str, str],
) -> subprocess.Popen[bytes]:
    """A process that leads a session, keeps some file descriptors, and reads nothing."""
    return subprocess.Popen(
        command,
        pass_fds=keeps,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=True,
    )
