"""The name of the Function that is made of a program: that of its class, its node and its op.

It is the user's name for the program: `LayerNorm` for `layer_norm`. A lambda has none: it is called
after the variable that it is assigned to, else after its line. Two lambdas have two names.
"""

from __future__ import annotations

import ast
import functools
import keyword
import linecache
import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any

from pullback.capture.names import function_class
from pullback.errors import FunctionNameError


def class_name(program: Any, name: str | None = None) -> str:
    """The name of the class for a program; `name` is the user's wish.

    >>> class_name(len), class_name(len, "row_count")
    ('Len', 'RowCount')
    """
    if name is not None:
        _require_name(name)
        return _capitalised(name)
    cls = function_class(program)
    if cls is not None:
        return cls.__name__
    while isinstance(program, functools.partial):
        program = program.func
    found = getattr(program, "__name__", type(program).__name__)
    if found == "<lambda>":
        return _lambda_name(program.__code__)
    return _capitalised(found if found.isidentifier() else "derived")


def _capitalised(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] or "_" for part in name.split("_"))


def _require_name(name: Any) -> None:
    """Raise unless `name` can name a class in Python, a function in C++ and an op."""
    is_name = isinstance(name, str) and name.isascii() and name.isidentifier()
    if is_name and not keyword.iskeyword(name) and name.strip("_"):
        return
    raise FunctionNameError(
        "`name` must be a name that a Python function could have",
        expected='letters, digits and underscores, such as "gate"',
        got=repr(name),
    )


# ---- lambdas ----

_numbers: dict[tuple[str, int], list[CodeType]] = {}
_lock = threading.Lock()


def _lambda_name(code: CodeType) -> str:
    """What a lambda is called: `Gate` in `gate = lambda ...`, else `Lambda12` on line 12.

    Further ones on the same line have a number, in the order in which they are asked for.
    """
    with _lock:  # Python 3.11 cannot parse in two threads at once (gh-106905)
        names = list(_assigned(code))
        base = _capitalised(names[0]) if len(names) == 1 else f"Lambda{code.co_firstlineno}"
        known = _numbers.setdefault((code.co_filename, code.co_firstlineno), [])
        if code not in known:
            known.append(code)
        number = known.index(code) + 1
    return base if number == 1 else f"{base}n{number}"


def _assigned(code: CodeType) -> Iterator[str]:
    """The variables that lambdas on the line of `code` are assigned to, themselves or in a call.

    Where that is unclear there are none, or several.
    """
    lines = linecache.getlines(code.co_filename)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # not the text that the code came from
        return
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        if not node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        called = value.args[:1] if isinstance(value, ast.Call) else [value]
        lambdas = [one for one in ast.walk(node) if isinstance(one, ast.Lambda)]
        is_it = called == lambdas and lambdas[0].lineno == code.co_firstlineno
        if is_it and len(targets) == 1 and isinstance(targets[0], ast.Name):
            yield targets[0].id
