"""How a worker ends: what it says last, what became of it in words, and whose fault that was."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pullback.check.processes.confine import end_below
from pullback.judge.run import describe

# Where the code of this library and that of PyTorch stands.
OURS = str(Path(__file__).resolve().parents[2])
TORCH = str(Path(str(torch.__file__)).parent)

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
