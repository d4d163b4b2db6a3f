"""Lines of a text: those that bind names which are not read are dropped, long ones are broken."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

WIDTH = 84
"""The longest statement, which leaves room for two levels of indentation."""

NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Line:
    """A statement: the names that it binds, what follows them, and whether it stays unread."""

    targets: tuple[str, ...]
    rest: str
    has_effect: bool = False

    @property
    def text(self) -> str:
        """The statement."""
        return f"{', '.join(self.targets)}{self.rest}"


def read_lines(lines: Iterable[Line], returned: Iterable[str]) -> list[str]:
    """The lines without those that bind names which nothing reads, as text.

    Where one of several names is not read, it is `_`.
    """
    read = set(NAME.findall(" ".join(returned)))
    kept: list[str] = []
    for line in reversed(list(lines)):
        if line.has_effect or not read.isdisjoint(line.targets):
            names = line.targets
            if len(names) > 1:
                names = tuple(name if name in read else "_" for name in names)
            kept.append(Line(names, line.rest).text)
            read |= set(NAME.findall(line.rest))
    return kept[::-1]


def wrapped_call(head: str, arguments: Iterable[str], tail: str = "") -> str:
    """A call or a head of a function, over as many lines as it takes."""
    arguments = tuple(arguments)
    line = f"{head}({', '.join(arguments)}){tail}"
    if len(line) <= WIDTH:
        return line
    lines = [""]
    for argument in arguments:
        # Between brackets a line may end anywhere, but not inside a string.
        is_list = len(argument) > WIDTH - 6 and '"' not in argument
        for piece in argument.split(", ") if is_list else [argument]:
            if len(lines[-1]) + len(piece) + 2 > WIDTH - 4 and lines[-1]:
                lines.append("")
            lines[-1] += f"{' ' if lines[-1] else ''}{piece},"
    if len(lines) == 1 and len(lines[0]) < WIDTH - 4:
        lines[0] = lines[0].removesuffix(",")
    return "\n".join([f"{head}(", *(f"    {line}" for line in lines), f"){tail}"])
