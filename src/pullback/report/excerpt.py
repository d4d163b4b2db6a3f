"""The lines of a user's file around a place, and the method that stands there."""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass

AROUND = 6  # lines above and below a place


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some lines of a file: the number of the first, and of the one that is meant."""

    file: str
    first: int
    line: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Method:
    """A function in a file, as it is written."""

    name: str
    text: str


def excerpt_of(place: str) -> Excerpt | None:
    """The lines around a place, `file.py:41`; None where the file cannot be read."""
    file, line = _parted(place)
    lines = linecache.getlines(file) if line else []
    if not 0 < line <= len(lines):
        return None
    first, last = max(1, line - AROUND), min(len(lines), line + AROUND)
    return Excerpt(file, first, line, tuple(one.rstrip("\n") for one in lines[first - 1 : last]))


def method_at(place: str) -> Method | None:
    """The innermost function around a place."""
    file, line = _parted(place)
    lines = linecache.getlines(file) if line else []
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return None
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    if not found:
        return None
    node = max(found, key=lambda node: node.lineno)
    return Method(node.name, "".join(lines[node.lineno - 1 : node.end_lineno]))


def _parted(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return (file, int(line)) if line.isdigit() else (place, 0)
