"""A call with a time limit that holds wherever the call is, on every thread.

sympy takes seconds or hours, and there is no way to know beforehand. A call runs on a thread of its
own, and when its time is over an exception is raised inside that thread, whatever it is doing in
Python. Time is processor time, so that a busy machine decides no less than an idle one. A call that
is inside C code ends when C returns.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_PATIENCE = 1.0  # seconds in which a stopped call must end
_CROWDED = 10  # times as long by the clock, for a call that waits
_AGAIN = 0.1  # seconds after which the exception is raised again: code may catch it


class TimeLimitError(Exception):
    """A call took longer than its limit."""


class _Stop(BaseException):
    """Raised inside a call whose time is over; `except Exception` does not catch it."""


def call_within(seconds: float, function: Callable[..., T], *args: Any) -> T:
    """What `function(*args)` returns or raises, or `TimeLimitError` after `seconds` of work."""
    if seconds <= 0:
        raise TimeLimitError
    call = _Call(lambda: function(*args))
    call.thread.start()
    try:
        is_in_time = call.wait(seconds)
    finally:
        call.stop()
    if not is_in_time:
        raise TimeLimitError
    if call.error is not None:
        raise call.error
    return call.result


class _Call(Generic[T]):
    """One call on its own thread."""

    result: T

    def __init__(self, function: Callable[[], T]) -> None:
        self.function = function
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.lock = threading.Lock()
        self.error: BaseException | None = None
        self.has_result = self.is_over = self.is_stopped = False

    def wait(self, seconds: float) -> bool:
        """Whether the call ends in time; waits in short steps, so that this thread can be stopped.

        A result that comes after the limit does not count.
        """
        end, latest = time.process_time() + seconds, time.monotonic() + _CROWDED * seconds
        while self.thread.is_alive() and (left := end - time.process_time()) > 0:
            if time.monotonic() > latest:
                break
            self.thread.join(min(_AGAIN, left))
        return not self.thread.is_alive()

    def stop(self) -> None:
        """End the call if it is still running."""
        self.is_stopped = True
        end = time.monotonic() + _PATIENCE
        while self.thread.is_alive() and time.monotonic() < end:
            with self.lock:
                if not self.is_over:
                    _raise_in(self.thread, _Stop)
            self.thread.join(_AGAIN)

    def _run(self) -> None:
        # Stopped anywhere in this loop, it comes round again and ends: nothing is ever printed.
        while not self.is_over:
            try:
                if not (self.has_result or self.error or self.is_stopped):
                    self._keep()
                with self.lock:
                    self.is_over = True
                for _ in range(100):  # what was raised before is raised here, at a jump
                    pass
            except _Stop:
                pass

    def _keep(self) -> None:
        try:
            self.result = self.function()
            self.has_result = True
        except _Stop:
            raise
        except BaseException as error:
            self.error = error


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise `error` in `thread` at its next step in Python.

    Never call this with None, to take an exception back: Python (3.11) then keeps looking for an
    exception that is not there, which makes the whole process ten times slower.
    """
    place = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(place, ctypes.py_object(error))
