"""The settings file: `[tool.pullback]` in `pyproject.toml`, or `pullback.toml`.

It is looked for where the command runs and in the folders above, as far as the root of the
repository. What is not a key, or has a value that the key cannot have, is an error that names the
file, the key and the nearest one that is known.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from pullback.check.findings.finding import PROFILES, Severity
from pullback.cli.settings import spoken
from pullback.errors import SettingsError

OWN, PROJECT = "pullback.toml", "pyproject.toml"
Reader = Callable[[Any], Any]


class Unfit(Exception):
    """A value that a key cannot have; the message says what it can."""


# ---- the file ----


def settings_file(start: Path) -> Path | None:
    """The nearest settings file, from `start` upwards to the root of the repository."""
    for folder in (start, *start.parents):
        if (folder / OWN).is_file():
            return folder / OWN
        if (folder / PROJECT).is_file() and _section(folder / PROJECT) is not None:
            return folder / PROJECT
        if (folder / ".git").exists():
            return None
    return None


def read_settings(path: Path) -> dict[str, Any]:
    """The settings that a file holds, by the names of the fields of `Settings`."""
    section = _section(path)
    if section is None:
        raise SettingsError(
            f"`{path}` must have settings", expected="a table [tool.pullback]", got="none"
        )
    prefix = "tool.pullback." if path.name == PROJECT else ""
    return _read(section, GENERAL, path, prefix)


def _section(path: Path) -> Mapping[str, Any] | None:
    """The table of our settings in a file; None where it has none."""
    whole = _parsed(path)
    if path.name != PROJECT:
        return whole
    section = whole.get("tool", {}).get("pullback")
    if section is not None and not isinstance(section, Mapping):
        raise SettingsError(f"`{path}` must have `tool.pullback` as a table", got=repr(section))
    return section


def _parsed(path: Path) -> Mapping[str, Any]:
    reader = _reader(path)
    try:
        whole: Mapping[str, Any] = reader.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:  # a mistake in TOML, or no text at all
        raise SettingsError(f"`{path}` must be TOML", got=str(error)) from None
    return whole


def _reader(path: Path) -> ModuleType:
    """What reads TOML: Python's own from 3.11 on, else the package that it came from."""
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise SettingsError(
        f"`{path}` cannot be read by this Python",
        expected="Python 3.11 or newer, or the package tomli",
        got="neither",
        fix="pip install tomli",
    )


# ---- what it may say ----


def _read(table: Any, keys: Mapping[str, Reader], path: Path, prefix: str) -> dict[str, Any]:
    """The values of a table, each read as its key asks; names with underscores."""
    if not isinstance(table, Mapping):
        raise SettingsError(
            f"`{prefix.rstrip('.')}` in `{path.name}` must be a table",
            expected=f"keys such as {', '.join(list(keys)[:3])}",
            got=repr(table),
        )
    found = {}
    for key, value in table.items():
        name = spoken(key)
        if name not in keys:
            raise SettingsError(
                f"`{prefix}{key}` in `{path.name}` must be a known setting",
                expected=" or ".join(get_close_matches(name, keys, 2, 0.5)) or ", ".join(keys),
                got=repr(key),
            )
        if name in TABLES:
            found[name.replace("-", "_")] = _tables(value, TABLES[name], path, f"{prefix}{key}.")
            continue
        try:
            found[name.replace("-", "_")] = keys[name](value)
        except Unfit as wanted:
            raise SettingsError(
                f"`{prefix}{key}` in `{path.name}` must be {wanted}", got=repr(value)
            ) from None
    return found


def _tables(
    value: Any, keys: Mapping[str, Reader], path: Path, prefix: str
) -> dict[str, dict[str, Any]]:
    """What is said of each file or target."""
    if not isinstance(value, Mapping):
        raise SettingsError(
            f"`{prefix.rstrip('.')}` in `{path.name}` must be tables, one for each name",
            expected=f'[{prefix}"name"]',
            got=repr(value),
        )
    return {name: _read(one, keys, path, f'{prefix}"{name}".') for name, one in value.items()}


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Unfit('a list of texts: ["a", "b"]')
    return tuple(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit("a text")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unfit("true or false")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise Unfit("a number, 0 or more")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Unfit("a whole number, 1 or more")
    return value


def _one_of(*words: str) -> Reader:
    def read(value: Any) -> str:
        if value not in words:
            near = get_close_matches(str(value), words, 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise Unfit(f"one of {', '.join(words)}{meant}")
        return str(value)

    return read


def _inputs(value: Any) -> bool | tuple[str, ...]:
    """Names of inputs, or true for all."""
    if isinstance(value, (bool, str)):
        return value if isinstance(value, bool) else (value,)
    try:
        return _texts(value)
    except Unfit:
        raise Unfit('names of inputs: ["x"], or true for all') from None


def _ranges(value: Any) -> dict[str, tuple[float, float]]:
    """The numbers that an input may have, by its name."""
    found = {}
    for name, ends in value.items() if isinstance(value, Mapping) else [("", None)]:
        if not isinstance(ends, list) or [type(end) in (int, float) for end in ends] != [True] * 2:
            raise Unfit("the least and the largest number of each input: { x = [0, inf] }")
        if not ends[0] <= ends[1]:
            raise Unfit("the least number of each input, then the largest")
        found[name] = (float(ends[0]), float(ends[1]))
    return found


PARTICULAR: dict[str, Reader] = {
    "select": _texts,
    "allow": _texts,
    "profile": _one_of(*PROFILES),
    "time": _number,
    "inputs": _text,
}
DECLARED: dict[str, Reader] = {
    "surrogate": _inputs,
    "donates": _inputs,
    "once-differentiable": _truth,
    "nondeterministic": _number,
    "domain": _ranges,
}
TABLES = {"per-file": PARTICULAR, "per-target": PARTICULAR, "declare": DECLARED}
GENERAL: dict[str, Reader] = {
    "targets": _texts,
    "exclude": _texts,
    **PARTICULAR,
    "fail-on": _one_of(*(severity.value for severity in Severity)),
    "baseline": _text,
    "jobs": _count,
    "cache": _truth,
    "output-format": _texts,
    **dict.fromkeys(TABLES, dict),
}
