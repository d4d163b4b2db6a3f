"""Where a command writes a document to stdout, everything else that is printed goes to stderr.

The user's code runs in this process as well: it is imported, and its examples are made. It may
print, by Python or by C, and that must not stand in the middle of the document.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

import click


class Aside:
    """Lets all that is printed go to stderr until it `ends`; the document is written afterwards."""

    def __init__(self, *, is_asked: bool = True) -> None:
        self._stdout: Any = sys.stdout
        self._kept: int | None = None
        if not is_asked:
            return
        with contextlib.suppress(OSError, AttributeError, ValueError):  # closed, or none
            self._stdout.flush()
            self._kept = os.dup(1)
            os.dup2(2, 1)
        sys.stdout = sys.stderr
        click.get_current_context().call_on_close(self.end)

    def end(self) -> None:
        """Let stdout be what it was."""
        if self._kept is not None:
            os.dup2(self._kept, 1)
            os.close(self._kept)
            self._kept = None
        sys.stdout = self._stdout
