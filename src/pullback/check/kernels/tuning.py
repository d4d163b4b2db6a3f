"""What Triton compiles and tunes at first use, which is no part of what a function takes.

A kernel is compiled for each kind of argument, and one that is tuned is tried in many forms: tens
of seconds at a first call, and again at another size. Who watches a worker counts that apart, and a
rule that may work for some seconds gets them for the function's own work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import Any

from pullback.judge import progress

_spent = 0.0  # seconds of this process's work that went into compiling and tuning
_depth = 0


def worked() -> float:
    """The seconds of work of this process, without what Triton took to compile and to tune."""
    return time.process_time() - _spent


def keep_tuned() -> None:
    """Let the results of tuning be kept on disk, as compiled kernels are, for later workers."""
    os.environ.setdefault("TRITON_CACHE_AUTOTUNING", "1")


def watch_tuning() -> None:
    """Count from here on what Triton compiles and tunes in this process."""
    if find_spec("triton") is None:
        return
    from triton.runtime import autotuner, jit  # optional, and slow to import

    _count(jit.JITFunction, "_do_compile")
    _count(autotuner.Autotuner, "_bench")


def _count(kind: type, name: str) -> None:
    old = getattr(kind, name, None)
    if old is not None and not hasattr(old, "is_counted"):
        setattr(kind, name, _counted(old))


def _counted(old: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(old)
    def counted(*args: Any, **options: Any) -> Any:
        global _spent, _depth
        start, _depth = time.process_time(), _depth + 1
        progress.current.tune(is_over=False)
        try:
            return old(*args, **options)
        finally:
            _depth -= 1
            if not _depth:  # tuning compiles, too
                _spent += time.process_time() - start
            progress.current.tune(is_over=not _depth)

    counted.is_counted = True  # type: ignore[attr-defined]
    return counted
