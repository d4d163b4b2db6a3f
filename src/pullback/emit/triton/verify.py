"""Whether a file of kernels computes what the program computes, before it is handed out.

On a GPU the kernels run there; without one, in Triton's interpreter, on the example, on zeros and
ties among its numbers, and at other sizes. Where Triton is not installed nothing can be run, and
the file says so.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pullback.derive.source import differing_text
from pullback.emit.subject import EmitSubject
from pullback.emit.tester import FileCall, FileFailedError, seen_of_file
from pullback.judge.comparison import Comparison
from pullback.judge.observed import Observed
from pullback.judge.text_difference import TextDifference
from pullback.judge.trial_rows import TrialRow

MOST = 1 << 22
"""Elements that Triton's interpreter goes over in some seconds."""

SIZES = 3
"""Rows of other sizes that are tried: the interpreter takes seconds for each."""


def interpreter_absence() -> str | None:
    """Why kernels cannot be run here, in one line; None if they can."""
    return None if importlib.util.find_spec("triton") else "Triton is not installed"


def require_same_kernels(subject: EmitSubject, text: str) -> None:
    """Raise unless the file `text` gives what the program gives, on several rows of inputs."""
    found = kernel_difference(subject, text)
    if found is not None:
        raise differing_text(subject.captured.name, found)


def kernel_difference(subject: EmitSubject, text: str) -> TextDifference | None:
    """What the file computes otherwise, if anything."""
    comparison = Comparison(subject.captured, subject.call, subject.specs, needs=subject.needs)
    rows = [*_rows(comparison)]
    calls = [_call(subject.name, comparison, row) for row, _ in rows]
    is_gpu = any(t.is_cuda for row, _ in rows for t in row.tensors)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "emitted.py")
        file.write_text(text, encoding="utf-8")
        settings = {} if is_gpu else {"TRITON_INTERPRET": "1"}
        try:
            seen = seen_of_file(file, calls, Path(folder), settings=settings)
        except FileFailedError as error:
            return TextDifference("the call", "the example", "a result", str(error))
    for (row, expected), found in zip(rows, seen, strict=True):
        differs = comparison.measurably_apart(expected, found, row)
        if differs is not None:
            return differs
    return None


def _rows(comparison: Comparison) -> Iterator[tuple[TrialRow, Observed]]:
    """The usual rows on which the program runs, and what it gives there."""
    values = [row for row in comparison.rows if row.is_usual and not row.has_nan]
    served = [row for row in comparison.sizes if row.is_served and not row.is_odd]
    for row in (*values, *served[:SIZES]):
        is_small = sum(t.numel() for t in row.tensors) <= MOST
        expected = comparison.expected(row) if is_small or row.tensors[0].is_cuda else None
        if expected is not None:
            yield row, expected


def _call(name: str, comparison: Comparison, row: TrialRow) -> FileCall:
    tensors = [t.detach() for t in row.tensors]
    places = [(place, None) for place in range(len(tensors))]
    return FileCall(name, tensors, comparison.wanted, places)
