"""A plan as a file: JSON that says what was measured, for the program that it was measured with."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pullback.errors import PlanFileError
from pullback.plan.choice import weight_of
from pullback.plan.evidence import PlanEvidence, Sized
from pullback.plan.measurements import Measurement, PlanCandidate

FORMAT, VERSION = "pullback-plan", 1


def write_plan(evidence: PlanEvidence, path: Path) -> None:
    """Write a plan: the whole file or nothing."""
    text = json.dumps(
        {"format": FORMAT, "version": VERSION, **_encoded(asdict(evidence))}, indent=1
    )
    write_whole(path, f"{text}\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: a reader finds the old text or the new one."""
    require_folder(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_mask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def require_folder(path: Path) -> None:
    """Raise unless the folder of a file exists, and the file is not a folder."""
    if not path.parent.is_dir() or path.is_dir():
        raise PlanFileError(
            f"`{path}` must be a file in a folder that is there",
            got="a folder" if path.is_dir() else f"no folder `{path.parent}`",
        )


def _mask() -> int:
    """The umask of this process."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _encoded(value: Any) -> Any:
    """Numbers that JSON does not have, as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(item) for item in value]
    return value


# ---- reading ----


def read(path: Path) -> PlanEvidence:
    """What is written in the file of a plan."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanFileError("a plan must be a file that can be read", got=str(error)) from None

    def decoded() -> PlanEvidence:
        data = json.loads(text)
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError("something else")
        version = data.pop("version")
        if version != VERSION:
            raise PlanFileError(
                f"`{path}` must be a plan of this version",
                expected=f"version {VERSION}",
                got=f"version {version}",
                fix="plan again: pb.plan(program, *examples).save(path)",
            )
        return _evidence(data)

    return guarded(path, decoded)  # type: ignore[no-any-return]


def guarded(path: Path, make: Callable[[], Any]) -> Any:
    """What `make` gives; an error in it means that the file is not a plan."""
    try:
        return make()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, RuntimeError) as error:
        if isinstance(error, PlanFileError):
            raise
        first_line = f"{type(error).__name__}: {error}".splitlines()[0]
        raise PlanFileError(
            f"`{path}` must be a plan that `save` wrote",
            got=first_line,
            fix="plan again: pb.plan(program, *examples).save(path)",
        ) from None


def _evidence(data: dict[str, Any]) -> PlanEvidence:
    sized = []
    for one in data.pop("sized"):
        rows = tuple(_row(row) for row in one.pop("rows"))
        sized.append(Sized(rows=rows, chosen=_candidate(one.pop("chosen")), **one))
    found = PlanEvidence(sized=tuple(sized), notes=tuple(data.pop("notes")), **data)
    weight_of(found.objective)
    if not found.chosen or not all(isinstance(border, int) for border in found.borders):
        raise ValueError("no choice in it")
    return found


def _row(data: dict[str, Any]) -> Any:
    numbers: Any = {k: float(data.pop(k)) for k in ("seconds", "relative", "low", "high")}
    error = data.pop("error")
    candidate = _candidate(data.pop("candidate"))
    return Measurement(candidate, error=None if error is None else float(error), **numbers, **data)


def _candidate(data: dict[str, Any]) -> Any:
    if data["how"] not in ("nested", "combined", "hybrid"):
        raise ValueError(f"no composition {data['how']!r}")
    groups = tuple(tuple(map(int, group)) for group in data.pop("groups"))
    return PlanCandidate(groups=groups, **data)
