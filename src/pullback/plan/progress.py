"""How far a search is, and how it is stopped.

How far: a bar on a terminal, nothing elsewhere, or whatever the caller does. It is stopped by
Ctrl-C, which must not be lost: Python raises `KeyboardInterrupt` wherever it happens to be, and
where that is the callback of a weak reference or a finalizer, the error is printed and forgotten.
So it is also noted, and raised again at the next step of a search.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Report = Callable[[int, int, str], None]


@contextmanager
def reporting(progress: bool | Report | None) -> Iterator[Report]:
    """What to call with the steps done, the steps known of, and a text.

    None is a bar where standard error is a terminal; True is one everywhere.
    """
    if callable(progress):
        yield progress
    elif progress or (progress is None and sys.stderr.isatty()):
        with _bar(is_forced=bool(progress)) as report:
            yield report
    else:
        yield lambda done, total, text: None


@contextmanager
def _bar(*, is_forced: bool) -> Iterator[Report]:
    from rich.console import Console  # only on a terminal
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"))
    # No refreshing by itself: that would be a thread, and noise in what is measured.
    console = Console(stderr=True, force_terminal=is_forced or None)
    bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
    with bar:
        task = bar.add_task("planning", total=None)

        def report(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text, refresh=True)

        yield report


# ---- Ctrl-C ----


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Inside, a function that raises `KeyboardInterrupt` if Ctrl-C was pressed.

    Only the main thread gets Ctrl-C, and another handler that is installed is left in place.
    """
    pressed: list[bool] = []

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    def heard(number: int, frame: Any) -> None:
        pressed.append(True)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, heard)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
