"""Code without a file of its own, and how tracebacks still find its lines.

Tracebacks, `inspect` and debuggers ask `linecache` for the lines of a code object's file. Generated
code has none, so its text is put there under a name of its own, for as long as the code lives.
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Iterator
from types import CodeType
from typing import Any


class _Text:
    """Alive as long as one of the functions of a text is."""


_last: dict[str, int] = {}  # the number that a title was given last


def run_text(text: str, title: str, space: dict[str, Any]) -> None:
    """Run the module `text` in `space`; tracebacks show its lines, in a file `<title>`.

    A title that is taken by code that is still alive gets a number: `<title 2>`.
    """
    path = _listed(text, title)
    module = compile(text, path, "exec", dont_inherit=True)
    alive = _Text()
    for code in itertools.islice(codes_in(module), 1, None):
        _at_the_end(code, id, alive)  # holds `alive`
    _at_the_end(alive, linecache.cache.pop, path, None)
    exec(module, space)


def _listed(text: str, title: str) -> str:
    """The path under which `text` is now in `linecache`."""
    entry = (len(text), None, text.splitlines(keepends=True), title)  # no time: is never checked
    first = f"<{title}>"
    if linecache.cache.setdefault(first, entry) is entry:
        return first
    for number in itertools.count(_last.get(title, 1) + 1):
        path = f"<{title} {number}>"
        if linecache.cache.setdefault(path, entry) is entry:
            break
    _last[title] = number
    return path


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """`code`, and that of all functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)


def _at_the_end(thing: Any, call: Any, *args: Any) -> None:
    """Make a call when `thing` is gone; not when the process ends."""
    weakref.finalize(thing, call, *args).atexit = False
