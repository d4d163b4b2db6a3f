"""What is shown while a command takes its time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A line that moves while something takes its time, on a terminal; gone when it is done."""
    console = Console(stderr=True)
    if not console.is_terminal or not sys.stdout.isatty():
        yield
        return
    with console.status(what):
        yield
