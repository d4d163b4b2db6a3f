"""`nest`: a program as it is written, with the interface of the other compositions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.autograd.function import Function as TorchFunction
from torch.compiler import is_dynamo_compiling

from pullback.capture.names import class_name
from pullback.derive.returned import unprintable
from pullback.derive.traced import traceable
from pullback.function.function import Function
from pullback.function.plain import MARKER
from pullback.function.slots import is_jit_tracing, new_class


def nest(program: Callable[..., Any], *, name: str | None = None) -> Any:
    """As `pullback.nest`, which says what it does."""
    return as_written(program, "", name)


def as_written(program: Callable[..., Any], reason: str, name: str | None = None) -> Any:
    """`nest(program)`; `reason` says why it is not combined, where that was asked for."""
    program = callable_of(program)
    explained = f"nested: {reason}" if reason else "nested: as written"
    call = composition(program, "nested", lambda *args, **kwargs: program(*args, **kwargs), name)
    call.explain = staticmethod(lambda: explained)
    call.refusal = reason
    call.is_wrong = staticmethod(lambda: False)
    call.eager_reasons = staticmethod(lambda: ())
    return call


def composition(
    program: Callable[..., Any], how: str, run: Callable[..., Any], name: str | None = None
) -> Any:
    """A `Function` called `name`, or as `program` is named, whose `apply` is `run`.

    `how` is "nested", "hybrid" or "planned". Compilers trace `program` itself.
    """
    called = class_name(program, name)

    def forward(ctx: Any, *args: Any) -> Any:
        return program(*args)

    def apply(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling() or is_jit_tracing():
            return program(*args, **kwargs)
        return run(*args, **kwargs)

    space: dict[str, Any] = {
        "forward": staticmethod(forward),
        "program": staticmethod(program),
        "composed": how,
        **unprintable(called, how),
        MARKER: True,
        "is_traceable": False,
        "__doc__": inspect.getdoc(program),
        "__module__": getattr(program, "__module__", __name__),
    }
    return traceable(new_class(called, Function, space), apply)


def callable_of(program: Any) -> Callable[..., Any]:
    """`program`; for the class of a Function, its `apply`."""
    if isinstance(program, type) and issubclass(program, TorchFunction):
        applied: Callable[..., Any] = program.apply
        return applied
    return program  # type: ignore[no-any-return]
