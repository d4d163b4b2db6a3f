"""While a program is watched, each `apply` that it calls is announced, and each op where asked.

- A `pullback.Function` announces its calls to a registered watcher
  (`function.call_watch.watch_calls`).
- PyTorch has no hook for calls of `Function.apply`, so they are intercepted here, in the one
  place where `apply` is changed. An alias kept from before (`relu = MyReLU.apply`) must be seen as
  well, so the change is made below `apply`: in a Function of PyTorch's that is a Python function
  that ends in `super().apply`, and the class above which it stands gets our `apply`. Where
  `apply` itself is a C function (as from 2.15 on), it is shadowed; an alias of that one cannot be
  seen (`units` refuses it).
- An op of the dispatcher is called through one of two classes of PyTorch's, whose `__call__` is
  wrapped while ops are watched: custom ops, those of `torch.library.triton_op` and those of
  C++ libraries are seen. PyTorch's own are left alone, and so are ops that compiled code calls.

Only the thread that watches is affected: for any other, both ways lead on at once. What was there
before comes back when the last watcher leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import Function as TorchFunction

from pullback.function.call_watch import CallWatch, watch_calls

# Takes the class or op, the call to make, its arguments and its keyword arguments.
Handler = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _Watched(threading.local):
    handler: Handler | None = None
    sees_ops: bool = False


_watched = _Watched()
_lock = threading.Lock()
_count = 0
_op_count = 0


@contextmanager
def watching(handler: Handler | None, *, ops: bool = False) -> Iterator[None]:
    """Announce each outermost `apply` of this thread to `handler`; None stops that.

    With `ops`, the calls of ops that are not PyTorch's own are announced, too.
    """
    before = _watched.handler, _watched.sees_ops
    _enter(ops)
    _watched.handler, _watched.sees_ops = handler, ops
    try:
        yield
    finally:
        _watched.handler, _watched.sees_ops = before
        _leave(ops)


def is_watched() -> bool:
    """Whether this thread's calls are announced."""
    return _watched.handler is not None


def announce(
    cls: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Hand one call to this thread's handler; calls inside it are not announced."""
    handler = _watched.handler
    if handler is None:
        return call(*args, **kwargs)
    _watched.handler = None
    try:
        return handler(cls, call, args, kwargs)
    finally:
        _watched.handler = handler


# ---- Functions of PyTorch's ----

_is_python = isinstance(vars(TorchFunction).get("apply"), classmethod)
_site: Any = TorchFunction.__mro__[1] if _is_python else TorchFunction
_had_apply = "apply" in vars(_site)
_torch_apply: Any = next(vars(c)["apply"] for c in _site.__mro__ if "apply" in vars(c))


def _apply(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
    return announce(cls, _torch_apply.__get__(None, cls), args, kwargs)


# ---- ops ----

# fmt: off
OWN_OPS = frozenset({
    "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_native", "_quantized", "_test",
    "aten", "c10d", "debug_mode_ops", "debugprims", "export", "inductor", "inductor_prims", "mkl",
    "mkldnn", "mkldnn_prepacked", "onednn", "prim", "prims", "profiler", "quantization",
    "quantized", "rngprims", "sparse", "static_runtime", "symm_mem",
})
# fmt: on
"""The namespaces of PyTorch's own ops."""

_overload: Any = torch.ops.aten.sin.default
_op_classes: tuple[Any, ...] = (type(_overload), type(_overload.overloadpacket))


def _announced(call: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not _watched.sees_ops or _watched.handler is None or namespace_of(self) in OWN_OPS:
            return call(self, *args, **kwargs)
        return announce(self, lambda *a, **k: call(self, *a, **k), args, kwargs)

    return __call__


def namespace_of(op: Any) -> str:
    """The namespace of an op or of a packet of overloads: "aten"."""
    overload = op if isinstance(op, _op_classes[0]) else getattr(op, op.overloads()[0])
    return str(overload.namespace)


# ---- putting it there, and taking it away ----

_plain_calls: tuple[Any, ...] = tuple(cls.__call__ for cls in _op_classes)


def _enter(ops: bool) -> None:
    global _count, _op_count
    with _lock:
        _count += 1
        if _count == 1:
            _site.apply = classmethod(_apply)
            watch_calls(CallWatch(is_watched, announce))
        _op_count += ops
        if ops and _op_count == 1:
            for cls, call in zip(_op_classes, _plain_calls, strict=True):
                cls.__call__ = _announced(call)


def _leave(ops: bool) -> None:
    global _count, _op_count
    with _lock:
        _op_count -= ops
        if ops and not _op_count:
            for cls, call in zip(_op_classes, _plain_calls, strict=True):
                cls.__call__ = call
        _count -= 1
        if _count:
            return
        watch_calls(None)
        if _had_apply:
            _site.apply = _torch_apply
        else:
            del _site.apply
