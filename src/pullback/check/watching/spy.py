"""A Function watched from inside: what its methods were given, marked and returned.

The engine repairs what a backward returns (it casts, sums and drops) and forgets what a forward
marked, so both are only seen by standing between. A subclass with wrapped methods does so and
changes nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from pullback.check.target.target import Target
from pullback.function.slots import version_of

Around = Callable[[], AbstractContextManager[Any]]


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


def spy_on(target: Target, around: Around = nullcontext) -> Spy | None:
    """A watched subclass of a Function; None where the user's backward cannot be stood before.

    Each call of backward runs inside a context that `around` makes.
    """
    name = "backward" if target.method("backward") is not None else "vjp"
    method = target.method(name)
    if method is None:
        return None
    calls: list[Call] = []
    return Spy(_subclass(target, {name: _watched(method, calls, around)}), calls)


def _subclass(target: Target, methods: dict[str, Callable[..., Any]]) -> Target:
    """The same Function with some of its methods wrapped."""
    body: dict[str, Any] = {name: staticmethod(method) for name, method in methods.items()}
    body["__module__"] = target.function.__module__
    watched = type(target.function)(target.function.__name__, (target.function,), body)
    return replace(target, thing=watched, function=watched, call=watched.apply)


def _watched(method: Callable[..., Any], calls: list[Call], around: Around) -> Callable[..., Any]:
    def backward(ctx: Any, *cotangents: Any) -> Any:
        call = Call(cotangents, tuple(bool(need) for need in ctx.needs_input_grad))
        calls.append(call)
        with around():
            returned = method(ctx, *cotangents)
        call.returned = returned if isinstance(returned, tuple) else (returned,)
        return returned

    return backward


# ---- marks ----


@dataclass(slots=True)
class Marks:
    """What one forward marked: the positions of the arguments, and which of them it wrote into.

    `written` holds the positions whose version moved: written into by an operator of PyTorch.
    """

    dirty: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()


@dataclass(slots=True)
class Marking:
    """A target whose forward is watched, and the marks it made."""

    target: Target
    marks: list[Marks] = field(default_factory=list)


def marking_of(target: Target) -> Marking | None:
    """A subclass of a Function that shows what forward marks; None where there can be none."""
    forward = target.method("forward")
    if forward is None:
        return None
    notes = Marking(target)
    if target.has_setup_context:
        setup = target.method("setup_context")
        if setup is None:
            return None
        wrapped = {
            "forward": _versions_noted(forward, notes),
            "setup_context": _marks_noted(setup, notes),
        }
    else:
        wrapped = {"forward": _both_noted(forward, notes)}
    notes.target = _subclass(target, wrapped)
    return notes


def _both_noted(forward: Callable[..., Any], notes: Marking) -> Callable[..., Any]:
    @functools.wraps(forward, updated=())
    def watched(ctx: Any, *args: Any) -> Any:
        before = _versions(args)
        result = forward(ctx, *args)
        notes.marks.append(Marks(_dirty(ctx, args), _moved(before, _versions(args))))
        return result

    return watched


def _versions_noted(forward: Callable[..., Any], notes: Marking) -> Callable[..., Any]:
    @functools.wraps(forward, updated=())
    def watched(*args: Any) -> Any:
        before = _versions(args)
        result = forward(*args)
        notes.marks.append(Marks(written=_moved(before, _versions(args))))
        return result

    return watched


def _marks_noted(setup: Callable[..., Any], notes: Marking) -> Callable[..., Any]:
    @functools.wraps(setup, updated=())
    def watched(ctx: Any, inputs: Any, output: Any) -> Any:
        result = setup(ctx, inputs, output)
        if notes.marks:
            notes.marks[-1].dirty = _dirty(ctx, inputs)
        return result

    return watched


def _dirty(ctx: Any, args: tuple[Any, ...]) -> frozenset[int]:
    marked = getattr(ctx, "dirty_tensors", None) or ()
    return frozenset(i for i, arg in enumerate(args) if any(arg is tensor for tensor in marked))


def _versions(args: tuple[Any, ...]) -> list[int | None]:
    return [version_of(arg) if isinstance(arg, Tensor) else None for arg in args]


def _moved(before: list[int | None], after: list[int | None]) -> frozenset[int]:
    pairs = enumerate(zip(before, after, strict=True))
    return frozenset(i for i, (old, new) in pairs if old != new)
