"""What a rank prints, on standard output and error, kept back until it has answered.

Its beginning is shown, on standard error: rules call a function many times. C++ ends a process with
lines there: gloo does so on every rank that was connected with one that is gone. Where that is the
finding, the finding tells it; it is not printed beside it.
"""

from __future__ import annotations

import re
import tempfile

from pullback.check.processes.wire import PrintedOutput

ABORT = "terminate called"  # how C++ begins what it says when it ends a process
REASON = "what():"
MOST = 200  # letters of a reason
# How PyTorch logs an error that it raises as well: rank, clock, and the line of its own code.
LOGGED = re.compile(r"(?:\[rank\d+\]:)?\[F\d{4} [^\]]*\] ?")
SOURCE = re.compile(r"\[[^\[\]]*\.(?:cc|cpp|h):\d+\]")  # where it stands in the code of gloo


class RankErrors:
    """A file without a name that is the standard output and error of one rank."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115
        self._told = PrintedOutput()

    def fileno(self) -> int:
        """The file, for the rank."""
        return self._file.fileno()

    def close(self) -> None:
        """Give up the file."""
        self._file.close()

    def _new(self) -> str:
        self._file.seek(0)
        return self._file.read().decode(errors="replace")

    def last_message(self) -> str:
        """Why C++ has ended the rank, where it says so."""
        _, _, reason = self._new().partition(REASON)
        words = " ".join(SOURCE.sub("", reason).split())
        return f" ({words[:MOST].rpartition('. ')[0] or words[:MOST]})" if words else ""

    def show(self) -> None:
        """Print what is new, but for what C++ says when it ends a process, or raises."""
        kept, _, _ = self._new().partition(ABORT)
        lines = kept.splitlines(keepends=True)
        kept = "".join(line for line in lines if not LOGGED.match(line))
        self._file.seek(0)  # for the rank as well, which writes where this ends
        self._file.truncate()
        if kept.strip():
            self._told.take(kept.encode())
