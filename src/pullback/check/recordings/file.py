"""Files of recorded calls: written whole or not at all, and read without running any code.

A file holds tensors, plain values and descriptions of other arguments (see `stored`), is loaded
with `weights_only=True`, and names the classes and ops (`module:Name`): loading one runs no code,
and checking one imports Functions and ops, and refuses anything else that it names.
"""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pullback.check.recordings.call import RecordedCall, read_call
from pullback.check.recordings.stored import CannotStoreError
from pullback.errors import RecordingError, type_and_line

SCHEMA = "pullback.recording/2"


@dataclass(frozen=True, slots=True)
class Saved:
    """What a file holds of a recording, and which calls it does not hold and why."""

    calls: int = 0
    functions: int = 0
    lost: tuple[str, ...] = ()


Places = dict[str, dict[str, int]]
"""By the name of a Function: where in modules it is called, and how often."""


def write_calls(
    path: str | Path,
    calls: Sequence[RecordedCall],
    ranks: int,
    places: Places,
    *,
    even_empty: bool,
) -> Saved:
    """Write the calls whose arguments can be described, and say which others there are and why."""
    stored, lost = [], []
    for call in calls:
        try:
            stored.append(call.stored())
        except CannotStoreError as why:
            lost.append(f"{call}: {why}")
    if stored or even_empty:
        whole = {"schema": SCHEMA, "calls": stored, "ranks": ranks, "places": places}
        _write(Path(path), whole)
    return Saved(len(stored), len({one["target"] for one in stored}), tuple(lost))


def read_calls(path: str | Path) -> tuple[list[RecordedCall], int, Places]:
    """The calls in a file, on how many ranks and where they were made; runs no code of it."""
    try:
        whole = torch.load(path, weights_only=True, map_location="cpu")
        if whole["schema"] != SCHEMA:
            raise ValueError(f"schema {whole['schema']!r}")
        places = {
            str(name): {str(path): int(count) for path, count in counts.items()}
            for name, counts in whole.get("places", {}).items()
        }
        return [read_call(call) for call in whole["calls"]], int(whole.get("ranks", 1)), places
    except Exception as error:
        raise RecordingError(
            f"`{path}` must be a recording",
            expected=f"a file that `Recording.save` wrote ({SCHEMA})",
            got=_wrong_with(path, error),
            fix="make one: pullback record -- python train.py",
        ) from None


def _wrong_with(path: str | Path, error: Exception) -> str:
    """Why a file is no recording; what PyTorch says of a file that is not its own only misleads."""
    if not zipfile.is_zipfile(path):
        return "a file that PyTorch did not write"
    return type_and_line(error)


def _write(path: Path, whole: dict[str, Any]) -> None:
    """Write a file in one step: whoever reads it finds all of it, or what was there before."""
    content = io.BytesIO()  # PyTorch's own writer hides what the system says, as of a full disk
    torch.save(whole, content)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.getbuffer())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
