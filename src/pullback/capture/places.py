"""Where in the user's own files something happens.

The user's frames are those outside of PyTorch and what it is built on, of pullback, and of Python's
own library. A *place* is the file and line of the deepest of them, such as `my_ops.py:41`.
"""

from __future__ import annotations

import functools
import os
import sysconfig
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_LIBRARY = sysconfig.get_path("stdlib")
_PACKAGES = ("site-packages", "dist-packages")
# What PyTorch is built on, and calls; and what environments hang into every import.
_UNDER_TORCH = {
    *("filelock", "functorch", "jinja2", "markupsafe", "mpmath", "networkx", "numpy", "sympy"),
    *("torch", "torchgen", "triton", "typing_extensions.py"),
    *("_distutils_hack", "_virtualenv.py"),
}
# Code that has no file: the import machinery, and functions that `torch.fx` and NumPy generate.
_GENERATED = ("<frozen ", "<eval_with_key>", "<__array_function__ internals>")


@functools.cache
def is_users_file(path: str) -> bool:
    """Whether the user wrote the file at `path`."""
    if path.startswith(_GENERATED) or _is_within(path, _OURS) or _is_within(path, _TORCH):
        return False
    parts = path.split(os.sep)
    for place, part in enumerate(parts[:-1]):
        if part in _PACKAGES:
            return parts[place + 1] not in _UNDER_TORCH
    return not _is_within(path, _LIBRARY)


def is_installed(path: str) -> bool:
    """Whether the file at `path` belongs to an installed package."""
    return bool(installed_package(path))


def installed_package(path: str) -> str:
    """Where the installed package lies that a file belongs to; empty where it belongs to none."""
    parts = path.split(os.sep)
    for place, part in enumerate(parts[:-1]):
        if part in _PACKAGES:
            return os.sep.join(parts[: place + 2])
    return ""


def _is_within(path: str, folder: str) -> bool:
    return path.startswith(folder + os.sep)


def is_users(frame: FrameType) -> bool:
    """Whether the user wrote what runs in `frame`."""
    path = frame.f_code.co_filename
    if path == "<string>":  # `python -c`, or a method that `dataclasses` made
        return frame.f_globals.get("__name__") == "__main__"
    return is_users_file(path)


def call_user(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`; a search for the user's frames goes no further up than this call."""
    return function(*args)


_TOP = call_user.__code__


def frames_above(frame: FrameType | None) -> Iterator[FrameType]:
    """The user's frames from `frame` upwards, deepest first, down to the nearest `call_user`."""
    while frame is not None and frame.f_code is not _TOP:
        if is_users(frame):
            yield frame
        frame = frame.f_back


def place_at(frame: FrameType | None) -> str:
    """The place of the deepest of the user's frames from `frame` upwards, or ""."""
    for users in frames_above(frame):
        return _written(users.f_code, users.f_lineno)
    return ""


def runs_inside(frame: FrameType | None, module: str) -> bool:
    """Whether a function of `module` stands between `frame` and the nearest `call_user`."""
    while frame is not None and frame.f_code is not _TOP:
        if frame.f_globals.get("__name__") == module:
            return True
        frame = frame.f_back
    return False


def place_of_error(error: BaseException) -> str:
    """The place where `error` came from, or "" when none of the user's frames saw it."""
    places = [
        _written(t.tb_frame.f_code, t.tb_lineno)
        for t in _below_call(error.__traceback__)
        if is_users(t.tb_frame)
    ]
    return places[-1] if places else ""


def is_users_error(error: BaseException) -> bool:
    """Whether the user's own code raised `error`, and not something that it called."""
    entries = list(_below_call(error.__traceback__))
    return bool(entries) and is_users(entries[-1].tb_frame)


def _below_call(entry: TracebackType | None) -> Iterator[TracebackType]:
    """The entries of a traceback below the first `call_user`: those of the program."""
    inside = False
    while entry is not None:
        if inside:
            yield entry
        inside = inside or entry.tb_frame.f_code is _TOP
        entry = entry.tb_next


def _written(code: CodeType, line: int) -> str:
    return f"{os.path.basename(code.co_filename)}:{line}"
