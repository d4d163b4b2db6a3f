"""While a program is watched, each `apply` that it calls is announced.

- A `pullback.Function` announces its calls to whoever asks for that
(`function.dispatch.watch_calls`).
- PyTorch shows the calls of `Function.apply` to nobody, so they are intercepted here, in the one
  place where `apply` is changed. An alias kept from before (`relu = MyReLU.apply`) must be seen as
  well, so the change is made below `apply`: in a Function of PyTorch's that is a Python function
  that ends in `super().apply`, and the class above which it stands gets our `apply`. Where
  `apply` itself is a C function (as from 2.15 on), it is shadowed; an alias of that one cannot be
  seen (`units` refuses it).

Only the thread that watches is affected: for any other, both ways lead on at once. What was there
before comes back when the last watcher leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd.function import Function as TorchFunction

from pullback.function.dispatch import CallWatch, watch_calls

# What a watcher is given: the class, the call to make, and what it is called with.
Handler = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _Watched(threading.local):
    handler: Handler | None = None


_watched = _Watched()
_lock = threading.Lock()
_count = 0


@contextmanager
def watching(handler: Handler | None) -> Iterator[None]:
    """Announce each outermost `apply` of this thread to `handler`; with None, to nobody."""
    before = _watched.handler
    _enter()
    _watched.handler = handler
    try:
        yield
    finally:
        _watched.handler = before
        _leave()


def is_watched() -> bool:
    """Whether this thread's calls are announced."""
    return _watched.handler is not None


def announce(
    cls: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Hand one call to this thread's handler, which is not told of the calls inside it."""
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


# ---- putting it there, and taking it away ----


def _enter() -> None:
    global _count
    with _lock:
        _count += 1
        if _count == 1:
            _site.apply = classmethod(_apply)
            watch_calls(CallWatch(is_watched, announce))


def _leave() -> None:
    global _count
    with _lock:
        _count -= 1
        if _count:
            return
        watch_calls(None)
        if _had_apply:
            _site.apply = _torch_apply
        else:
            del _site.apply
