"""Modes that see every op inside them, and what must not happen under them."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

from pullback.function.slots import PlainDispatchMode

_uncompiled = threading.Lock()
_depth = 0
_stance: Any = None


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, what `torch.compile` made runs as written.

    `torch.cond`, `while_loop` and `scan` compile themselves. Dynamo gives up for good on code that
    it meets under a dispatch mode: after that, every `torch.cond` of the process would raise.
    The stance is one for all threads; the last one to leave puts it back.
    """
    global _depth, _stance
    with _uncompiled:
        _depth += 1
        if _depth == 1 and "torch._dynamo" in sys.modules:
            with contextlib.suppress(RuntimeError):  # inside of what is being compiled
                _stance = torch.compiler.set_stance("force_eager")
    try:
        yield
    finally:
        with _uncompiled:
            _depth -= 1
            if _depth == 0 and _stance is not None:
                _stance.__exit__(None, None, None)
                _stance = None


class DispatchMode(PlainDispatchMode):  # type: ignore[misc]
    """PyTorch's mode that sees every op. Under it, nothing compiles itself."""

    def __enter__(self) -> Any:
        self._quiet = [*getattr(self, "_quiet", ()), uncompiled()]
        self._quiet[-1].__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> Any:
        try:
            return super().__exit__(*raised)
        finally:
            self._quiet.pop().__exit__(None, None, None)
