"""Watch a program make its calls: every torch op, and every `apply` of a Function.

A *call* is what the user's code asks for: `Square.apply(x)`, `x * y`, `torch.softmax(h, -1)`,
`torch.ops.mylib.scale(x)`. What a call does inside is not announced, except for the ops that a
Function's own `forward` and `backward` make: those carry `inner = True`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback.capture.fake import apart
from pullback.capture.patch import watching
from pullback.capture.places import place_at
from pullback.capture.trees import tensor_leaves
from pullback.function.slots import version_of

FUNCTION, OP, CUSTOM = "function", "op", "custom"

_OVERLOAD = type(torch.ops.aten.mul.Tensor)
_PACKET = type(torch.ops.aten.mul)
_BUILT_IN = ("aten", "prim", "prims")


@dataclass(frozen=True, slots=True)
class WatchedCall:
    """One call that a program makes, not yet made.

    `owner` is what the user called: the op, or the class of the Function. `make(*args, **kwargs)`
    makes the call.
    """

    kind: str
    name: str
    owner: Any
    make: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    frame: FrameType
    inner: bool = False

    @property
    def place(self) -> str:
        """The user's file and line."""
        return place_at(self.frame)


Listener = Callable[[WatchedCall], Any]


@contextmanager
def watched(listener: Listener) -> Iterator[None]:
    """Give each call of this thread to `listener`, who makes it and returns its result."""
    watcher = Watcher(listener)
    with watching(watcher.apply), watcher:
        yield


class Watcher(TorchFunctionMode):
    """Turns what PyTorch shows of calls into `WatchedCall`s."""

    is_hidden_from_captures = True  # as `fake.apart` asks

    def __init__(self, listener: Listener) -> None:
        TorchFunctionMode.__init__(self)
        self.listener = listener
        self.is_inside = False

    def apply(
        self, cls: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One `apply` of the Function `cls`."""
        name = cls.__name__
        seen = WatchedCall(
            FUNCTION, name, cls, call, args, kwargs, sys._getframe(1), self.is_inside
        )
        return self._inside(seen)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kind, name, frame = _kind_of(func), _name_of(func), sys._getframe(1)
        return self._inside(
            WatchedCall(kind, name, func, func, args, kwargs or {}, frame, self.is_inside)
        )

    def _inside(self, call: WatchedCall) -> Any:
        before, self.is_inside = self.is_inside, True
        try:
            return self.listener(call)
        finally:
            self.is_inside = before


@contextmanager
def shielded() -> Iterator[None]:
    """Hide what happens inside from watchers and hooks; gradients are recorded."""
    with apart(), watching(None), torch.inference_mode(False), torch.enable_grad():
        yield


# ---- what makes a call a unit ----


def versions_of(tensors: list[Tensor]) -> list[int]:
    """How often each tensor was changed in place; inference tensors do not count."""
    return [version_of(tensor) for tensor in tensors]


def is_unit(result: Any, before: list[int], after: list[int]) -> bool:
    """Whether a call made or changed tensors: reading a shape or a dtype does neither."""
    return before != after or bool(tensor_leaves(result))


# ---- names of ops ----


def _kind_of(function: Any) -> str:
    if isinstance(function, (_OVERLOAD, _PACKET)):
        return OP if _namespace_of(function) in _BUILT_IN else CUSTOM
    return OP


def _name_of(function: Any) -> str:
    """What the user calls the op: `mul` for `x * y`, `T` for the attribute, `lib::op` for a custom.

    >>> _name_of(torch.Tensor.__mul__), _name_of(torch.Tensor.T.__get__)
    ('mul', 'T')
    """
    if isinstance(function, (_OVERLOAD, _PACKET)):
        space = _namespace_of(function)
        name = str(function).split(".")[1]
        return name if space in _BUILT_IN else f"{space}::{name}"
    name = str(getattr(function, "__name__", type(function).__name__))
    if name in ("__get__", "__set__"):
        name = str(getattr(function.__self__, "__name__", name))
    return name.strip("_") if name.startswith("__") else name


def _namespace_of(op: Any) -> str:
    return str(op).split(".")[0]
