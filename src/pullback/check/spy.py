"""A Function watched from inside: what its backward was given, asked and returned.

The engine mends what a backward returns (it casts, sums and drops), so the raw values are only seen
by standing between. A subclass with a wrapped `backward` does so and changes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pullback.check.target import Target


@dataclass(slots=True)
class Call:
    """One call of backward: what came in, and what it returned."""

    cotangents: tuple[Any, ...]
    needs: tuple[bool, ...]
    returned: tuple[Any, ...] = ()
    ctx: Any = None


@dataclass(slots=True)
class Spy:
    """A target whose backward is watched, and the calls it saw."""

    target: Target
    calls: list[Call] = field(default_factory=list)


def spy_on(target: Target) -> Spy | None:
    """A watched twin of a Function; None where the user's backward cannot be stood before."""
    name = "backward" if target.method("backward") is not None else "vjp"
    method = target.method(name)
    if method is None:
        return None
    calls: list[Call] = []
    watched = type(target.function)(
        target.function.__name__,
        (target.function,),
        {name: staticmethod(_watched(method, calls)), "__module__": target.function.__module__},
    )
    return Spy(replace(target, thing=watched, function=watched, call=watched.apply), calls)


def _watched(method: Callable[..., Any], calls: list[Call]) -> Callable[..., Any]:
    def backward(ctx: Any, *cotangents: Any) -> Any:
        call = Call(cotangents, tuple(bool(need) for need in ctx.needs_input_grad))
        calls.append(call)
        returned = method(ctx, *cotangents)
        call.returned = returned if isinstance(returned, tuple) else (returned,)
        return returned

    return backward
