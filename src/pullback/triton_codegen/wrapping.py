"""Long lines of a file of kernels, broken as one would by hand."""

from __future__ import annotations

from collections.abc import Sequence


def wrapped_line(line: str, width: int = 92) -> list[str]:
    """A line of a kernel, its outermost call over several lines where it is long."""
    if len(line) <= width or "(" not in line:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    for begin in (i for i, c in enumerate(line) if c == "("):
        end = _closing(line, begin)
        inner = line[begin + 1 : end]
        is_outer = len(line) - (end - begin) < width - 8 and len(inner) > 30
        if is_outer and line[begin - 1] not in " (":
            items = _items(inner)
            whole = f"{indent}    {inner}"
            rows = [whole] if len(whole) <= width else [f"{indent}    {item}," for item in items]
            return [line[: begin + 1], *rows, f"{indent}){line[end + 1 :]}"]
    return [line]


def _closing(line: str, begin: int) -> int:
    depth = 0
    for place in range(begin, len(line)):
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        if depth == 0:
            return place
    return len(line) - 1


def _items(inner: str) -> list[str]:
    """The arguments of a call."""
    items, depth, current = [], 0, ""
    for letter in inner:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            items.append(current.strip())
            current = ""
        else:
            current += letter
    return [*items, current.strip()]


def wrapped_signature(head: str, items: Sequence[str], end: str, width: int = 96) -> list[str]:
    """A head, its arguments and its end; as many arguments in a line as it holds."""
    whole = f"{head}{', '.join(items)}{end}"
    if len(whole) <= width:
        return [whole]
    lines, current = [head], ""
    for item in items:
        if current and len(current) + len(item) + 7 > width:
            lines.append(f"    {current.rstrip()}")
            current = ""
        current += f"{item}, "
    return [*lines, f"    {current.rstrip()}", end]
