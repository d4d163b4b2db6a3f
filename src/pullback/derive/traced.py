"""A derived Function under `torch.compile`: the compiler traces the program itself.

The text that a derived Function runs fits the kind of one call, so a compiler that traced it would
serve other sizes and plain values wrongly. The program is made of plain ops, and of hand-written
Functions that Dynamo knows; traced, it is guarded and differentiated by the compiler, which chooses
by itself what to save. Guarantee: a compiled call gives what the call gives, for every kind of
call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.derive.returned import instantiated
from pullback.function.slots import be_seen


def traceable(cls: Any, apply: Callable[..., Any]) -> Any:
    """`cls`, whose `apply` is this function, which Dynamo reads as it is written.

    It calls the program itself where `is_dynamo_compiling()`.
    """
    cls.apply = staticmethod(apply)
    cls.__new__ = staticmethod(instantiated)
    be_seen(cls)
    return cls
