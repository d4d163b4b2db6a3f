"""Why something is not combined: one line for each kind of call, or group, that is not."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from pullback.capture.trees import flatten
from pullback.errors import (
    CaptureError,
    DifferingCaptureError,
    PullbackError,
    UnsupportedOpError,
)

REFUSALS = (CaptureError, DifferingCaptureError, UnsupportedOpError)
"""What is raised for a program that cannot be captured, compiled or verified."""

_LIMIT = 256  # kinds of calls that are remembered


class Reasons:
    """The calls that run as written, by their key, and why; safe to use from several threads."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[Any, tuple[str, str]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, key: Any, call: str, reason: str) -> None:
        """Remember a call, in words, and its reason."""
        with self._lock:
            self._reasons[key] = (call, reason)
            while len(self._reasons) > _LIMIT:
                self._reasons.popitem(last=False)

    def __contains__(self, key: Any) -> bool:
        return key in self._reasons

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def lines(self) -> Iterator[str]:
        """One line for each kind of call."""
        with self._lock:
            pairs = dict.fromkeys(self._reasons.values())
        return (f"nested for {call}: {reason}" for call, reason in pairs)


_LEAF = "a leaf Variable that requires grad"  # as PyTorch says of a change in place


def is_refusal(error: BaseException) -> bool:
    """Whether `error` says that a program cannot be captured: it may still run as written.

    One that changes an input in place does, but on copies of the examples, which are leaves.
    """
    return isinstance(error, REFUSALS) or (isinstance(error, RuntimeError) and _LEAF in str(error))


def reason_text(error: BaseException) -> str:
    """An error in one line: the rule, what was found instead, and where."""
    if not isinstance(error, PullbackError):
        return "an input is changed in place"  # the one refusal that PyTorch makes
    got, at = error.facts["got"], error.facts["at"]
    at = "" if at.startswith("<") else at  # in text that was written for a group
    text = error.rule + (f": {got}" if got else "") + (f" ({at})" if at else "")
    return " ".join(text.split())


def call_text(args: Any) -> str:
    """The arguments of a call in a few words: `(float64[3, 4], None, 2)`."""
    leaves, _ = flatten(args)
    return f"({', '.join(map(_leaf_text, leaves))})"


def _leaf_text(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    text = repr(leaf)
    return text if len(text) <= 20 else type(leaf).__name__
