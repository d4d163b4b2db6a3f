"""Code that is compiled once for many sizes: which tensors it serves, and what serves others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from pullback.capture.fake import is_dense
from pullback.capture.seeds import memory_order
from pullback.errors import CaptureError
from pullback.run.nodes.node import Compiled


class OpenSizes:
    """Code with open sizes, and the text for sizes and strides that it does not serve."""

    def __init__(self, code: Any, text: Compiled, refused: Callable[[CaptureError], None]) -> None:
        self.code, self.text, self.refused = code, text, refused
        self.found: dict[Any, Compiled] = {}

    def __call__(self, row: list[Any]) -> Sequence[Any]:
        key = tuple([(v.shape, v.stride()) if isinstance(v, Tensor) else v for v in row])
        run = self.found.get(key)
        if run is None:
            run = self._look(row)
            if len(self.found) >= _SIZES:
                self.found.clear()
            self.found[key] = run
        return run(row)

    def _look(self, row: Sequence[Any]) -> Compiled:
        meets: Callable[[Sequence[Any]], bool] = getattr(self.code, "meets", lambda row: True)
        if meets(row):
            code: Compiled = self.code
            return code
        shapes = ", ".join(str(list(v.shape)) for v in row if isinstance(v, Tensor))
        self.refused(CaptureError("code for open sizes must serve the sizes of a call", got=shapes))
        return self.text


_SIZES = 4096  # how many are remembered


def stride_pattern(row: Sequence[Tensor]) -> tuple[Any, ...]:
    """How tensors lie in memory, whatever their sizes: code for open sizes serves one pattern."""
    return tuple(_pattern(x) for x in row)


def _pattern(x: Tensor) -> tuple[Any, ...]:
    if x.is_contiguous():
        return ()
    strides = x.stride()
    return (*memory_order(strides), is_dense(x), *(step == 0 for step in strides))
