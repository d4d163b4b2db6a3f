"""Triton kernels by value, for functions of a notebook or of `__main__`.

A kernel object holds locks and compiled code, which no pickle takes, and Triton compiles from the
text of the source file, which another process may not have. So the Python function is sent, with
the lines of its file, and becomes a kernel again there. One that can be imported is imported.
"""

from __future__ import annotations

import importlib
import io
import linecache
import sys
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

MODULES = ("triton.runtime.jit", "triton.runtime.interpreter")
OPTIONS = ("do_not_specialize", "do_not_specialize_on_alignment", "debug", "noinline")


def sent_by_value(thing: Any) -> bytes:
    """The object as cloudpickle packs it, with the kernels in it."""
    file = io.BytesIO()
    _Pickler(file).dump(thing)
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, thing: Any) -> Any:
        if type(thing).__module__ not in (*MODULES, "triton.runtime.autotuner"):
            return super().reducer_override(thing)
        by_name = _by_name(thing)
        if by_name is not None:
            return by_name
        return _by_source(thing) if type(thing).__module__ in MODULES else NotImplemented


def _by_name(kernel: Any) -> Any:
    """How to import it, where that gives this kernel."""
    inner = kernel
    while hasattr(inner, "fn"):
        inner = inner.fn
    module, name = getattr(inner, "__module__", ""), getattr(inner, "__qualname__", "")
    if module in ("", "__main__") or not name.isidentifier():
        return None
    if getattr(sys.modules.get(module), name, None) is not kernel:
        return None
    return _imported, (module, name)


def _imported(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _by_source(kernel: Any) -> Any:
    """How to make it again from its function and the lines of its file."""
    options = {name: getattr(kernel, name) for name in OPTIONS if hasattr(kernel, name)}
    file = kernel.fn.__code__.co_filename
    return _kernel, (type(kernel), kernel.fn, options, file, linecache.getlines(file))


def _kernel(kind: type, function: Any, options: dict[str, Any], file: str, lines: Any) -> Any:
    """The kernel of a function, whose source Python finds where it always looks."""
    if lines and not linecache.getlines(file):
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    return kind(function, **options)
