"""What a process that watches a worker sees of it: the calls of the user's code, as they begin.

A worker that is silent for long may stand in one call of the user's code, which is the user's
matter, or make one call after the other, which is up to the caller.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

# Calls begun, elements of the arguments of the last one; kernels tuned, whether one is just now.
_FORM = "QQQQ"
_SIZE = struct.calcsize(_FORM)


class Progress:
    """The calls that were begun, in memory that a fork shares with its parent.

    With a file, that is where others read it.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        if file is None:
            self._memory = mmap.mmap(-1, _SIZE)
            return
        with open(file, "r+b") as opened:
            opened.truncate(_SIZE)
            self._memory = mmap.mmap(opened.fileno(), _SIZE)

    def remove(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def begin(self, size: int) -> None:
        """A call with so many elements begins."""
        struct.pack_into("QQ", self._memory, 0, self.seen[0] + 1, size)

    def tune(self, *, is_over: bool) -> None:
        """A kernel is compiled or tuned from now on, or no longer."""
        struct.pack_into("QQ", self._memory, struct.calcsize("QQ"), self.tuned[0] + 1, not is_over)

    @property
    def seen(self) -> tuple[int, int]:
        """How many calls were begun, and the size of the last one."""
        calls, size, _, _ = struct.unpack_from(_FORM, self._memory)
        return calls, size

    @property
    def tuned(self) -> tuple[int, bool]:
        """How often a kernel was compiled or tuned, begun and ended, and whether one is now."""
        _, _, count, is_tuning = struct.unpack_from(_FORM, self._memory)
        return count, bool(is_tuning)


current = Progress()
"""That of this process; a worker and who forked it share one."""


def shared_progress(file: Path | None = None) -> Progress:
    """A new one from here on: for a worker that is forked next, or in a worker, read by others."""
    global current
    current = Progress(file)
    return current
