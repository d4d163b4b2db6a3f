"""Who sees the calls of `pullback.Function.apply`.

PyTorch has no hook for calls of `Function.apply`; a layer above that must see them, such as
`pullback.capture.patch`, registers itself here, and `function.dispatch` asks before each call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class CallWatch(NamedTuple):
    """A watcher of the calls of `apply`.

    Attributes:
        is_on: whether the calls of this thread are announced; for others `apply` goes on at once.
        announce: given the class, the call to make, its arguments and its keyword arguments. What
            it returns is what `apply` returns.
    """

    is_on: Callable[[], bool]
    announce: Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


current: CallWatch | None = None


def watch_calls(watch: CallWatch | None) -> None:
    """Announce every call of `apply` to `watch` from now on; None stops that."""
    global current
    current = watch
