"""The files of the user's that a file depends on: what it imports, and what those import.

They are read, not run: also an import inside a function counts. Of installed packages, only the one
that the file itself belongs to is followed. What is imported by a name that is made while the
program runs, and data that is read, are not seen.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from pullback.capture.places import installed_package, is_users_file


def sources_of(path: Path) -> tuple[Path, ...]:
    """The file itself and every file of the user's that it imports, in order of their names."""
    return _reached(path.resolve(), tuple(sys.path))


@cache
def _reached(path: Path, folders: tuple[str, ...]) -> tuple[Path, ...]:
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        waiting += [one for one in _imported(file, folders) if _is_own(one, path)]
    return tuple(sorted(found))


def _is_own(path: Path, start: Path) -> bool:
    """Whether a file is the user's, or of the installed package that the first file belongs to."""
    if not is_users_file(str(path)):
        return False
    package = installed_package(str(path))
    return not package or package == installed_package(str(start))


def _imported(path: Path, folders: tuple[str, ...]) -> Iterator[Path]:
    """The Python files that a file imports, the packages on the way included."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield from module_files(one.name.split("."), folders)
        elif isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            start: tuple[str, ...] = folders
            if node.level:
                start = (str(path.parents[node.level - 1]),)
                yield from _package(Path(start[0]))
            yield from module_files(parts, start)
            for one in node.names:
                yield from module_files([*parts, one.name], start)


def module_files(parts: list[str], folders: tuple[str, ...]) -> Iterator[Path]:
    """The files of the packages and of the module that a dotted name stands for."""
    for part in parts:
        spec = PathFinder.find_spec(part, [folder or os.getcwd() for folder in folders])
        if spec is None:
            return
        if spec.origin and spec.origin.endswith(".py"):
            yield Path(spec.origin).resolve()
        folders = tuple(spec.submodule_search_locations or ())


def _package(folder: Path) -> Iterator[Path]:
    """The `__init__.py` of a package, which runs before a module of it."""
    if (folder / "__init__.py").is_file():
        yield (folder / "__init__.py").resolve()
