"""Ctrl-C that is not lost.

Python raises `KeyboardInterrupt` wherever it happens to be, and where that is the callback of a
weak reference or a finalizer, the error is printed and forgotten. So it is also noted, and raised
again at the next step of a search.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
