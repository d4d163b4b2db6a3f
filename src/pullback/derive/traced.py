"""A derived Function under `torch.compile`: the compiler traces the program itself.

The text that a derived Function runs fits the kind of one call, so a compiler that traced it would
serve other sizes and plain values wrongly. The program is made of plain ops, and of hand-written
Functions that Dynamo knows; traced, it is guarded and differentiated by the compiler, which chooses
by itself what to save. Law: a compiled call gives what the call gives, for every kind of call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.compiler import is_dynamo_compiling

from pullback.derive.returned import instantiated
from pullback.function.slots import be_seen


def traceable(cls: Any, program: Callable[..., Any]) -> Any:
    """`cls`, a derived Function, for which Dynamo reads `program` at each call of `apply`."""
    whole = vars(cls)["apply"].__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return program(*args, **kwargs)
        return whole(cls, *args, **kwargs)

    cls.apply = classmethod(apply)
    cls.__new__ = staticmethod(instantiated)
    be_seen(cls)
    return cls
