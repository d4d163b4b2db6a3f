"""How far a search is: a bar on a terminal, nothing elsewhere, or whatever the caller does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
