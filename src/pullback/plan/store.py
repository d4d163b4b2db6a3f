"""A plan as a file: JSON that says what was measured, for the program that it was measured with."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pullback.errors import PlanFileError, type_and_line
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
    """Write a file atomically: a reader finds the old text or the new one.

    A device, a pipe, or what a link stands for is written to as it is: it is not to be replaced.
    """
    if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
        path.write_text(text, encoding="utf-8", newline="\n")
        return
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
    except (
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        RecursionError,
        RuntimeError,
    ) as error:
        if isinstance(error, PlanFileError):
            raise
        first_line = type_and_line(error)
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
    _require(found, PlanEvidence, "plan")
    weight_of(found.objective)
    if not isinstance(found.signature, list) or not _is_place(found.place, found.signature):
        raise ValueError("no arguments in it, or none to take the size of")
    if not found.made_with.keys() >= {"torch", "device", "threads", "seconds"}:
        raise ValueError("no machine in it")
    if not found.chosen or not all(isinstance(border, int) for border in found.borders):
        raise ValueError("no choice in it")
    return found


def _is_place(place: int | None, row: list[Any]) -> bool:
    return place is None or 0 <= place < len(row)


def _require(value: Any, hint: Any, name: str) -> None:
    """Raise `TypeError` unless `value` is what a type hint says, to the last number in it."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if not any(_fits(value, part, name) for part in parts):
            raise TypeError(f"{name} is {value!r}")
    elif origin is tuple:
        _require(value, tuple, name)
        for place, item in enumerate(value):
            _require(item, parts[0], f"{name}[{place}]")
    elif origin is not None:  # a mapping
        _require(value, dict, name)
        for key, item in value.items():
            _require(key, parts[0], name)
            _require(item, parts[1], f"{name}[{key!r}]")
    elif is_dataclass(hint):
        for part, kind in get_type_hints(hint).items():
            _require(getattr(value, part), kind, part)
    elif hint is not Any and not _is_of(value, hint):
        raise TypeError(f"{name} is {value!r}")


def _fits(value: Any, hint: Any, name: str) -> bool:
    try:
        _require(value, hint, name)
    except TypeError:
        return False
    return True


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a plain type; True is no number here, and each integer is a float."""
    kinds = (int, float) if kind is float else kind
    return isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))


def _row(data: dict[str, Any]) -> Any:
    numbers: Any = {k: float(data.pop(k)) for k in ("seconds", "relative", "low", "high")}
    if 0 in numbers.values():
        raise ValueError("a time of zero")
    error = data.pop("error")
    candidate = _candidate(data.pop("candidate"))
    return Measurement(candidate, error=None if error is None else float(error), **numbers, **data)


def _candidate(data: dict[str, Any]) -> Any:
    if data["how"] not in ("nested", "combined", "hybrid"):
        raise ValueError(f"no composition {data['how']!r}")
    groups = tuple(tuple(map(int, group)) for group in data.pop("groups"))
    return PlanCandidate(groups=groups, **data)
