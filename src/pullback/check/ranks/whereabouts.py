"""Where a rank stands in its code, asked from outside while it computes.

A thread of the rank answers, which sees the frames of all others as soon as it has the
interpreter's lock. Nothing is asked of frames by a signal: Python may be in the midst of a call.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import connection
from types import FrameType
from typing import Any

from pullback.capture.places import installed_package, is_users
from pullback.check.processes.endings import OURS, TORCH
from pullback.check.target.registration import near

_FIRST = f"{__package__}.worker"  # the life of a rank begins there
# What of PyTorch makes other code of the user's: that may take minutes, and comes to an end.
_MAKERS = tuple(
    os.path.join(TORCH, *part.split("/"))
    for part in (
        *("_inductor", "_functorch", "_export", "export", "fx", "jit"),
        *("_dynamo/convert_frame", "utils/cpp_extension"),
    )
)

Line = tuple[str, str, int]  # a file, a function in it, and the line that it is at


@dataclass(frozen=True, slots=True)
class RankStack:
    """The user's lines that a rank stands in, outermost first, and whether the last of them works.

    It does where that line itself runs, or what it calls in PyTorch; not where something is
    compiled for it, or another package works.
    """

    lines: tuple[Line, ...] = ()
    is_own: bool = False

    @property
    def place(self) -> str:
        """The deepest line; empty where there is none."""
        return f"{near(self.lines[-1][0])}:{self.lines[-1][2]}" if self.lines else ""

    def common(self, later: RankStack) -> RankStack:
        """What has not changed until later: down to the call whose own lines change."""
        kept: list[Line] = []
        for one, two in zip(self.lines, later.lines, strict=False):
            if one[:2] != two[:2]:
                break
            kept.append(two)
            if one != two:
                break
        return RankStack(tuple(kept), self.is_own and later.is_own)


class AskedRank:
    """A pipe through which one rank is asked where it stands."""

    def __init__(self) -> None:
        self._ours, self._theirs = connection.Pipe()
        self._number = 0  # of questions

    def fileno(self) -> int:
        """The end of the rank."""
        return self._theirs.fileno()

    def close(self) -> None:
        """Give up the pipe."""
        self._ours.close()
        self._theirs.close()

    def ask(self) -> None:
        """Let the rank say where it stands; the answer comes when it is let run."""
        self._number += 1
        with contextlib.suppress(OSError):  # it has ended
            self._ours.send_bytes(pickle.dumps(self._number))

    def told(self) -> RankStack | None:
        """The answer to the last question; None where it has not come yet."""
        found: RankStack | None = None
        with contextlib.suppress(OSError, EOFError):
            while self._ours.poll(0):
                number, told = pickle.loads(self._ours.recv_bytes())
                found = told if number == self._number else found
        return found


# ---- in the rank ----


def answer_from(end: int) -> None:
    """Let a thread answer whoever asks at the other end."""
    threading.Thread(target=_answer, args=(connection.Connection(end),), daemon=True).start()


def _answer(pipe: Any) -> None:
    with contextlib.suppress(OSError, EOFError):
        while True:
            number = pickle.loads(pipe.recv_bytes())
            pipe.send_bytes(pickle.dumps((number, _here())))


def _here() -> RankStack:
    """Where the thread stands that runs the user's code: the main one, or one of autograd's."""
    main = threading.main_thread().ident
    stacks = sorted(sys._current_frames().items(), key=lambda one: one[0] != main)
    found = (stack_at(frame) for _, frame in stacks if not _is_of_threading(frame))
    return next((one for one in found if one.lines), RankStack())


def _is_of_threading(frame: FrameType) -> bool:
    """Whether the thread is one that Python has started."""
    return any(above.f_globals.get("__name__") == "threading" for above in _upwards(frame))


def _upwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames from one upwards; what has called the check is no part of it."""
    while frame is not None and frame.f_globals.get("__name__") != _FIRST:
        yield frame
        frame = frame.f_back


def stack_at(frame: FrameType) -> RankStack:
    """What the frames of a thread tell, from the deepest upwards."""
    frames = list(_upwards(frame))
    users = [number for number, one in enumerate(frames) if is_users(one)]
    if not users:
        return RankStack()
    paths = [one.f_code.co_filename for one in frames]
    last, first = users[0], users[-1]
    is_made = any(path.startswith(_MAKERS) for path in paths[:first])
    is_plain = not is_made and all(path.startswith((OURS, TORCH)) for path in paths[:last])
    is_of_function = installed_package(paths[last]) == installed_package(paths[first])
    lines = tuple(_line(frames[number]) for number in reversed(users))
    return RankStack(lines, is_plain and is_of_function)


def _line(frame: FrameType) -> Line:
    return frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno
