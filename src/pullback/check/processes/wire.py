"""Messages of a worker to its parent, over a pipe into which the target may write as well.

A message begins with a token that only the two of them know, and its length; the parent takes what
is there and waits for nothing, so that garbage is seen as such and half a message holds nobody up.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import sys
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

MOST = 10_000  # bytes that are shown of what a function prints in one worker
CHUNK = 1 << 16  # bytes: what a pipe holds on Linux
_LENGTH = struct.Struct("Q")


class GarbledError(Exception):
    """What came is no message of the worker's: the target has written into its pipe."""


class Outbox:
    """The end of a worker."""

    def __init__(self, end: int, token: bytes) -> None:
        self._end, self._token = end, token

    def send(self, message: Any) -> None:
        """Send a message, whole."""
        body = pickle.dumps(message)
        left = memoryview(self._token + _LENGTH.pack(len(body)) + body)
        while left:
            left = left[os.write(self._end, left) :]


class PrintedOutput:
    """What a target prints while it is checked: the beginning is shown, the rest is left out."""

    def __init__(self, most: int = MOST) -> None:
        self._most = self._left = most
        self._is_over = not most

    def take(self, chunk: bytes) -> None:
        """Show what is to be shown of it, where errors are shown: results are written to stdout."""
        if self._is_over:
            return
        text = chunk[: self._left].decode(errors="replace")
        self._left -= len(chunk)
        if self._left < 0:
            self._is_over = True
            text += f"\n[what the function printed after {self._most} bytes is left out]\n"
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no stderr, or closed
            sys.stderr.write(text)
            sys.stderr.flush()


class Inbox:
    """The end of the parent, who also takes what the worker prints."""

    def __init__(
        self,
        said: int,
        printed: int,
        token: bytes,
        has_ended: Callable[[], bool],
        output: PrintedOutput,
    ) -> None:
        self._said, self._printed, self._token = said, printed, token
        self._has_ended, self.output = has_ended, output
        self._held = bytearray()
        self._is_over = False
        for end in (said, printed):
            os.set_blocking(end, False)

    def fileno(self) -> int:
        """The end that messages come from, to wait for several workers at once."""
        return self._said

    def poll(self, seconds: float) -> bool:
        """Whether a message has come within the time, or garbage, or the end."""
        if self._is_ready():
            return True
        open_ends = [self._said] if self._printed < 0 else [self._said, self._printed]
        came = wait(open_ends, seconds)
        if self._printed in came:
            self.drain()
        if self._said in came:
            self._fill()
        elif not came and self._has_ended():  # another process may hold its end of the pipe
            self._fill()
            self._is_over = True
        return self._is_ready()

    def recv(self) -> Any:
        """The next message; raises `EOFError` after the last one, and `GarbledError`."""
        while not self.poll(1.0):
            pass
        size = self._size()
        if self._is_garbled():
            raise GarbledError
        if size is None:
            raise EOFError
        head = len(self._token) + _LENGTH.size
        body = bytes(self._held[head : head + size])
        del self._held[: head + size]
        try:
            return pickle.loads(body)
        except Exception as error:
            raise GarbledError(str(error)) from None

    def drain(self) -> None:
        """Take what was printed until now, so that no writer waits for it."""
        with contextlib.suppress(BlockingIOError):
            while self._printed >= 0:
                chunk = os.read(self._printed, CHUNK)
                self.output.take(chunk)
                if not chunk:
                    self._printed = -1

    def _fill(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._said, CHUNK):
                self._held += chunk
            self._is_over = True

    def _is_garbled(self) -> bool:
        start = self._held[: len(self._token)]
        return bytes(start) != self._token[: len(start)]

    def _size(self) -> int | None:
        """The length of the message at the beginning, if all of it is there."""
        head = len(self._token) + _LENGTH.size
        if len(self._held) < head:
            return None
        (size,) = _LENGTH.unpack(self._held[len(self._token) : head])
        return int(size) if len(self._held) >= head + size else None

    def _is_ready(self) -> bool:
        return self._is_over or self._is_garbled() or self._size() is not None
