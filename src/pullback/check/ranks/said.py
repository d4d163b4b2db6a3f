"""What a rank writes on standard error, kept back until it has answered.

C++ ends a process with lines on standard error: gloo does so on every rank that was connected with
one that is gone. Where that is the finding, the finding tells it; it is not printed beside it.
"""

from __future__ import annotations

import re
import sys
import tempfile

ABORT = "terminate called"  # how C++ begins what it says when it ends a process
REASON = "what():"
MOST = 200  # letters of a reason
SOURCE = re.compile(r"\[[^\[\]]*\.(?:cc|cpp|h):\d+\]")  # where it stands in the code of gloo


class RankErrors:
    """A file without a name that is the standard error of one rank."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("a+b", buffering=0)  # noqa: SIM115
        self._shown = 0

    def fileno(self) -> int:
        """The file, for the rank."""
        return self._file.fileno()

    def close(self) -> None:
        """Give up the file."""
        self._file.close()

    def _new(self) -> str:
        self._file.seek(self._shown)
        return self._file.read().decode(errors="replace")

    def last_words(self) -> str:
        """Why C++ has ended the rank, where it says so."""
        _, _, reason = self._new().partition(REASON)
        words = " ".join(SOURCE.sub("", reason).split())
        return f" ({words[:MOST].rpartition('. ')[0] or words[:MOST]})" if words else ""

    def show(self) -> None:
        """Print what is new, but for what C++ says when it ends a process."""
        text = self._new()
        self._shown += len(text.encode(errors="replace"))
        kept, _, _ = text.partition(ABORT)
        if kept.strip():
            sys.stderr.write(kept)
            sys.stderr.flush()
