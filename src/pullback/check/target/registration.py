"""Where a thing was written, and what the dispatcher knows of an op: its schema, its line."""

from __future__ import annotations

import inspect
import linecache
import os
import re
from pathlib import Path
from typing import Any

import torch

from pullback.function.slots import op_schema

_dump: Any = getattr(torch._C, "_dispatch_dump", lambda name: "")

ABOVE = 12  # lines that may stand above a `def`
_LINE = r": registered at (.+?):(\d+)\b"


TORCH = str(Path(str(torch.__file__)).parent)


def schema_of(thing: Any) -> Any:
    """The schema of an op, of the first overload where it has several; None for anything else."""
    thing = overload_of(thing)
    schema = op_schema(thing)
    return None if isinstance(schema, str) else schema


def overload_of(thing: Any) -> Any:
    """The op that is meant by a packet of overloads or a Python definition; else `thing`."""
    if type(thing).__name__ == "OpOverloadPacket":
        return getattr(thing, thing.overloads()[0])
    return getattr(thing, "_opoverload", thing)


def place_of_op(thing: Any) -> str:
    """`file:line` where the op's autograd, or else the op, is registered in C++ or Python.

    C++ keeps no line of a backward: that of `TORCH_LIBRARY` or `TORCH_LIBRARY_IMPL` is the nearest.
    Empty for what is no op, and where the file is not on this machine.
    """
    schema = schema_of(thing)
    if schema is None:
        return ""
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    dump = _dump(name)
    for kind in ("Autograd[^:]*", "debug"):
        found = re.search(f"^{kind}{_LINE}", dump, re.MULTILINE)
        if found and Path(found.group(1)).is_file() and not found.group(1).startswith(TORCH):
            return f"{near(found.group(1))}:{found.group(2)}"
    return _place_in_python(schema.name)


def body_of(thing: Any) -> Any:
    """The function behind an op that is made in Python; None for any other."""
    schema = schema_of(thing)
    return None if schema is None else getattr(_made_in_python(schema.name), "_init_fn", None)


def is_in_one_file(thing: Any) -> bool:
    """Whether all of an op that is made in Python stands in the file of its body."""
    schema = schema_of(thing)
    made = None if schema is None else _made_in_python(schema.name)
    written = ("_init_fn", "_backward_fn", "_setup_context_fn", "_vmap_fn", "_abstract_fn")
    codes = [getattr(getattr(made, name, None), "__code__", None) for name in written]
    files = {code.co_filename for code in codes if code is not None}
    return len(files) == 1 and set(getattr(made, "_backend_fns", ())) <= {None}


def has_vmap_rule(thing: Any) -> bool:
    """Whether an op that is made in Python has a rule for `vmap`."""
    schema = schema_of(thing)
    made = None if schema is None else _made_in_python(schema.name)
    return getattr(made, "_vmap_fn", None) is not None


def _made_in_python(name: str) -> Any:
    """What `torch.library.custom_op` made of that name; None where it made nothing."""
    try:
        from torch._library.custom_ops import OPDEFS
    except ImportError:  # another version of PyTorch
        return None
    return OPDEFS.get(name)


def _place_in_python(name: str) -> str:
    """`file:line` of the backward, or else of the function, of an op that is made in Python."""
    made = _made_in_python(name)
    for attribute in ("_backward_fn", "_init_fn"):
        code = getattr(getattr(made, attribute, None), "__code__", None)
        if code is not None and not code.co_filename.startswith(TORCH):
            return f"{near(code.co_filename)}:{code.co_firstlineno}"
    return ""


def near(path: str) -> str:
    """`path` from here, where that is shorter."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return relative if len(relative) < len(path) else path


def place_of(thing: Any) -> str:
    """`file:line` of what the user wrote, relative to here where that is shorter; else empty."""
    thing = inspect.unwrap(thing) if callable(thing) else thing
    code = getattr(thing, "__code__", None)
    try:
        if code is not None:
            path, line = code.co_filename, _line_of(code)
        else:
            path, line = inspect.getsourcefile(thing) or "", inspect.getsourcelines(thing)[1]
    except (TypeError, OSError):
        return ""
    if not path or path.startswith("<"):
        return ""
    return f"{near(path)}:{line}"


def _line_of(code: Any) -> int:
    """The line of `def`, below the decorators."""
    first: int = code.co_firstlineno
    for line in range(first, first + ABOVE):
        text = linecache.getline(code.co_filename, line).lstrip()
        if text.startswith(("def ", "async def ", "lambda")):
            return line
    return first
