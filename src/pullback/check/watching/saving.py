"""Hooks on what a Function saves by itself, and not on what a graph inside of its forward saves.

A forward may build a graph of its own, for a force or an inner solver, and run it backward at once.
Hooks of `torch.autograd.graph` see what that graph saves too; it is saved while forward runs, what
goes through `save_for_backward` after forward has returned.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from pullback.check.target.target import Target

Pack = Callable[[Tensor], Any]
Unpack = Callable[[Any], Tensor]


@contextmanager
def saving(target: Target, pack: Pack, unpack: Unpack = lambda kept: kept) -> Iterator[None]:
    """Hand what the Function saves to `pack`, and what that gave to `unpack`."""
    codes = _codes(target)

    def packed(tensor: Tensor) -> tuple[bool, Any]:
        is_inner = _is_running(codes)
        return is_inner, tensor if is_inner else pack(tensor)

    def unpacked(kept: tuple[bool, Any]) -> Tensor:
        is_inner, value = kept
        return value if is_inner else unpack(value)

    with torch.autograd.graph.saved_tensors_hooks(packed, unpacked):
        yield


def _codes(target: Target) -> frozenset[Any]:
    """The code of the user's forward; none where the target is no Function."""
    methods = [target.method(name) for name in ("forward", "setup_context")]
    found = (getattr(inspect.unwrap(m), "__code__", None) for m in methods if m is not None)
    return frozenset(code for code in found if code is not None)


def _is_running(codes: frozenset[Any]) -> bool:
    """Whether one of these functions is on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and codes:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False
