"""Keys of the settings that are about nothing: a file, a target or a Function that is not there.

Nothing is imported for it. A key is told only where what it names cannot be found: one whose
target is there, and was not asked for in this run, is none of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from pullback.check.target.naming import OPS
from pullback.cli.changed import python_files
from pullback.cli.identity import Identity, from_root
from pullback.cli.settings import Settings, spoken
from pullback.cli.sources import module_files
from pullback.report.outcome import Remark

OPEN = ("import *", "__getattr__", "globals()")  # a module with one has names that are not in it


def idle_keys(settings: Settings, met: Sequence[Identity]) -> Iterator[Remark]:
    """What is said of files and targets that are neither among those met nor anywhere else."""
    known = _Known(settings.root, met)
    keys = [("per_file", key) for key in settings.per_file]
    keys += [(name, key) for name in ("per_target", "declare") for key in getattr(settings, name)]
    for name, key in keys:
        why = known.why_no_file(key) if name == "per_file" else known.why_no_target(key)
        if why:
            written = f'{spoken(name)}."{key}"'
            yield Remark(settings.origins.get(name, ""), f"{written} is about nothing: {why}")


class _Known:
    """What is there: what was met in this run, and the files below the root."""

    def __init__(self, root: Path, met: Sequence[Identity]) -> None:
        self._root = root
        self._names = [name for one in met for name in one.names]
        self._met = {one.file for one in met if one.file}

    @cached_property
    def _files(self) -> list[str]:
        return [*self._met, *(from_root(path, self._root) for path in python_files(self._root))]

    def why_no_file(self, key: str) -> str:
        if any(fnmatchcase(file, key) for file in self._met):
            return ""
        is_there = any(fnmatchcase(file, key) for file in self._files)
        return "" if is_there else f"no file is called so{_meant(key, self._files)}"

    def why_no_target(self, key: str) -> str:
        if key.startswith(OPS) or any(fnmatchcase(name, key) for name in self._names):
            return ""
        where, colon, name = key.rpartition(":")
        meant = _meant(key, self._names)
        if not colon:
            return "" if "*" in key else f"a target is called module:Name or file.py:Name{meant}"
        if where.endswith(".py"):
            found = [self._root / file for file in self._files if fnmatchcase(file, where)]
            absent = f"no file is called `{where}`"
        elif "*" in where:
            return ""
        else:
            found = list(module_files(where.split("."), (str(self._root), *sys.path)))[-1:]
            absent = f"there is no module `{where}`"
            if not found and self._is_module(where):
                return ""
        if not found:
            return f"{absent}{meant}"
        return (
            "" if any(_has(path, name) for path in found) else f"`{where}` has no `{name}`{meant}"
        )

    def _is_module(self, where: str) -> bool:
        """Whether a module that is no file of Python's may be meant by the name."""
        return where in sys.modules or where.partition(".")[0] in sys.builtin_module_names


def _has(path: Path, name: str) -> bool:
    """Whether the text of a module may define the name: what cannot be read may."""
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return True
    last = name.rpartition(".")[2]
    is_open = "*" in name or any(mark in text for mark in OPEN)
    return is_open or re.search(rf"\b{re.escape(last)}\b", text) is not None


def _meant(key: str, known: Sequence[str]) -> str:
    near = get_close_matches(key, known, 1, 0.7)
    return f"; did you mean `{near[0]}`?" if near else ""
