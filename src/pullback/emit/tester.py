"""What emitted files give for rows of inputs, seen in a process of their own.

A library that is loaded stays loaded, a kernel may crash, and Triton's interpreter must be switched
on before its import: none of that may happen in the caller's process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback.judge import observed as observing
from pullback.judge.observed import JOB, RESULTS, Observed, Wanted

RUN_SECONDS = 600.0
"""Seconds after which the process that runs a file is given up."""

_RUN = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


class FileFailedError(Exception):
    """The process that ran an emitted file did not come to its end."""


@dataclass(frozen=True)
class FileCall:
    """One call of an op, or of a Function, by its name.

    An argument is the place of a tensor, or a value: `(place, None)`, `(None, value)`.
    """

    name: str
    tensors: Sequence[Tensor]
    wanted: Wanted
    arguments: Sequence[tuple[int | None, Any]]
    named: Mapping[str, Any] = field(default_factory=dict)


def seen_of_file(
    file: Path,
    calls: Sequence[FileCall],
    folder: Path,
    *,
    namespace: str = "",
    settings: Mapping[str, str] | None = None,
) -> list[Observed]:
    """What a file gives for each call; raises `FileFailedError` where it does not come to its end.

    Arguments:
        file: A library whose ops are in `namespace`, or a module in Python.
        calls: What is called, and with what.
        folder: Where to put what the process reads and writes.
        namespace: That of the ops; empty for a module.
        settings: More of the environment of the process.
    """
    rows = [(c.name, [*c.tensors], vars(c.wanted), [*c.arguments], {**c.named}) for c in calls]
    threads = torch.get_num_threads()
    job = {"file": str(file), "namespace": namespace, "threads": threads, "calls": rows}
    torch.save(job, folder / JOB)
    path = os.pathsep.join([part for part in sys.path if part])
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, str(observing.__file__), str(folder)],
            cwd=folder,
            env={**os.environ, **(settings or {}), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RUN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FileFailedError(f"a call that did not end in {RUN_SECONDS:g} s") from None
    if done.returncode or not (folder / RESULTS).exists():
        last = done.stderr.strip().splitlines()[-1:] or ["no word"]
        raise FileFailedError(f"a process that ended with {done.returncode}: {last[0]}")
    return [Observed(**found) for found in torch.load(folder / RESULTS, weights_only=False)]
