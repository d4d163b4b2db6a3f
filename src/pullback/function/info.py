"""`FunctionInfo`: one Function class as the eager path sees it.

It is made at the first call of a class and holds what every later call needs: the signature, and a
second class, its shadow, whose `forward` wraps the user's and whose context is `AutogradContext`.
Eager calls go through the shadow. `torch.func` and `torch.compile` see the user's class itself.
"""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable, Mapping
from operator import is_
from typing import Any, cast

import torch
from torch.autograd.function import Function as TorchFunction

from pullback.errors import PullbackWarning
from pullback.function.context import AutogradContext, NeedsInputGrad
from pullback.function.foreign import ContextView
from pullback.function.forward import make_run
from pullback.function.gradients import by_name
from pullback.function.keeping import KeepingContext
from pullback.function.signature import (
    REQUIRED,
    Signature,
    forward_signature,
    is_translated,
    state_of,
)
from pullback.function.slots import (
    c_apply,
    hidden_from_dynamo,
    new_class,
    no_setup_context,
    no_vjp,
    unseen,
)
from pullback.function.unwritten import (
    derived,
    filled,
    lacks_backward,
    leaves_some,
    make_raw,
    pulled,
)

_HIDDEN = 3  # a forward, what sets its context up, and a backward


class FunctionInfo:
    """One Function class as the eager path sees it."""

    __slots__ = (
        "cls",
        "completes",
        "fixed",
        "groups",
        "hidden",
        "is_boxed",
        "is_clearing",
        "is_mixed",
        "is_opaque",
        "is_single",
        "is_translated",
        "is_usual",
        "keeping",
        "layouts",
        "name",
        "plain",
        "raw",
        "seen",
        "signature",
        "state",
        "traverses",
        "warned",
        "why",
    )

    def __init__(self, cls: Any, signature: Signature | None = None) -> None:
        self.cls = cls
        self.name: str = cls.__name__
        self.signature = signature or forward_signature(cls)
        self.fixed = self.signature.fixed if self.signature.has_setup else -1
        if self.signature.has_setup and self.signature.keyword_only:
            self.fixed = -2  # no plain call fits: bind every time
        self.state = state_of(cls)
        self.is_boxed = bool(getattr(cls, "boxed_grads_call", False))
        self.is_clearing = bool(getattr(cls, "clear_saved_tensors_on_access", False))
        self.completes = leaves_some(cls)  # whether `backward` leaves gradients to be derived
        self.is_opaque = not cls.is_traceable or self.completes
        self.is_usual = not (self.is_boxed or self.is_opaque or self.completes)
        self.is_usual = self.is_usual and cls.vjp is no_vjp
        self.is_single = self.signature.fixed == 1 and self.signature.defaults == (REQUIRED,)
        self.is_translated = is_translated(cls)
        # Whether an argument that is no tensor was ever seen: forward then takes its long way.
        self.is_mixed = self.completes
        self.seen: set[torch.Size] = set()  # cotangent shapes whose gradients were looked at
        self.plain: type[AutogradContext] = AutogradContext
        self.keeping: type[KeepingContext] = KeepingContext
        self.traverses = bool(cls.traverse_lists)
        self.groups: tuple[tuple[int, int], ...] | None = None
        self.warned: set[type] = set()
        self.layouts: dict[Any, int] = {}
        self.hidden: tuple[tuple[Any, Callable[..., Any]], ...] = ()
        self.why = ""  # why no backward can be derived, once that is known
        plain = _shadow_class(self)
        self.raw = make_raw(self, plain) if lacks_backward(cls) else plain

    def group(self, flags: tuple[bool, ...]) -> tuple[bool, ...]:
        """One flag per argument of the user's, where lists were taken apart."""
        if self.groups is None:
            return flags
        return tuple(any(flags[first:last]) for first, last in self.groups)

    def warn_once(self, warning: PullbackWarning) -> None:
        """Say `warning` the first time that this class earns it."""
        if type(warning) not in self.warned:
            self.warned.add(type(warning))
            warnings.warn(warning, stacklevel=4)

    def layout(self, ctx: AutogradContext) -> tuple[int, ...]:
        """A number for where `ctx` keeps its tensors, for compiled autograd's key."""
        if ctx._pb_user_saves is None:
            return ()
        slots, data = ctx._pb_slots or {}, ctx._pb_data_slots or {}
        key = (ctx._pb_user_saves, tuple(slots.items()), tuple(data.items()))
        return (self.layouts.setdefault(key, len(self.layouts)),)

    def opaque(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` out of the compiler's sight, when there is a compiler in this process."""
        if "torch._dynamo" not in sys.modules:
            return function
        for known, hidden in self.hidden:
            if known is function:
                return hidden
        disable: Any = torch.compiler.disable
        hidden = cast("Callable[..., Any]", disable(function))
        self.hidden = (*self.hidden[-_HIDDEN:], (function, hidden))
        return hidden


def info_of(cls: Any) -> FunctionInfo:
    """The info of `cls`, made at its first call."""
    info = cls.__dict__.get("_pb_info")
    if info is None:
        info = FunctionInfo(cls)
        cls._pb_info = info
    return cast(FunctionInfo, info)


def current(info: FunctionInfo) -> FunctionInfo:
    """`info`, or a new one when the user has replaced `forward`, its defaults or its style."""
    state = state_of(info.cls)
    same = len(state) == len(info.state) and all(map(is_, state, info.state))
    if info.groups is not None or same:
        return info
    info.cls._pb_info = FunctionInfo(info.cls)
    return cast(FunctionInfo, info.cls._pb_info)


def _shadow_class(info: FunctionInfo) -> Callable[..., Any]:
    """PyTorch's C `apply`, bound to a class that runs the user's methods with our context."""
    cls = info.cls
    space = _attributes(cls) | {
        "forward": staticmethod(make_run(info)),
        "backward": staticmethod(_compiled_backward(info)),
        "jvp": staticmethod(cls.jvp),
        "vjp": staticmethod(no_vjp),
        "setup_context": staticmethod(no_setup_context),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    # PyTorch looks these up at every call, and a failed look-up costs more than a False.
    for name in ("boxed_grads_call", "clear_saved_tensors_on_access"):
        space[name] = getattr(cls, name, False)
    shadow: Any = new_class(cls.__name__, TorchFunction, space)
    # The context PyTorch made for the class stays a base: who has it at hand still knows ours.
    made = getattr(cls._backward_cls, "_pb_made", cls._backward_cls)
    plain: Any = type(
        made.__name__,
        (AutogradContext, made),
        {
            "_pb_info": info,
            "_pb_made": made,
            "_forward_cls": shadow if info.is_opaque else cls,
            "__module__": cls.__module__,
        },
    )
    info.plain = shadow._backward_cls = cls._backward_cls = plain
    # What keeps more than PyTorch knows of is not for compiled autograd to read by itself.
    info.keeping = type(
        made.__name__,
        (KeepingContext, plain),
        {"_forward_cls": shadow, "__module__": cls.__module__},
    )
    return c_apply(shadow)


def _attributes(cls: type) -> dict[str, Any]:
    """The attributes that users gave `cls` and its bases."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if not issubclass(TorchFunction, base) and "_pb_is_base" not in vars(base):
            found |= {n: v for n, v in vars(base).items() if not n.startswith(("__", "_pb_"))}
    found.pop("apply", None)
    return found


def _compiled_backward(info: FunctionInfo) -> Callable[..., Any]:
    """What compiled autograd traces: the user's backward on the context that it brings."""

    # Bound here: Dynamo has rules of its own for `cls.backward`, which refuse our view of `ctx`.
    users = info.cls.backward

    def backward(ctx: Any, *cotangents: Any) -> Any:
        if ctx._pb_list_output:
            cotangents = cotangents[:-1]
        seen = ctx
        if ctx._pb_user_saves is not None or info.completes:
            seen = ContextView(ctx, ctx._pb_slots, ctx._pb_user_saves)
        result = users(seen, *cotangents)
        return _completed(info, ctx, result, cotangents) if info.completes else result

    def opaque(ctx: Any, *cotangents: Any) -> Any:
        return info.opaque(backward)(ctx, *cotangents)

    return cast("Callable[..., Any]", hidden_from_dynamo(opaque)) if info.is_opaque else backward


def _completed(info: FunctionInfo, ctx: Any, result: Any, cotangents: tuple[Any, ...]) -> Any:
    """What the user's backward returned to compiled autograd, the gradients left out derived."""
    flags = tuple(ctx.needs_input_grad)
    if isinstance(result, Mapping):
        names = tuple(info.signature.name(i) for i in range(len(flags)))
        result = by_name(info.name, names, result, info.signature.names)
    row = result if isinstance(result, tuple) else (result,)
    wanted = [i for i, gradient in enumerate(row) if gradient is derived and flags[i]]
    if not wanted:
        return filled(row, {})
    return pulled(ctx, row, cotangents, wanted, tuple(ctx.saved_tensors))


def _hide_methods(cls: type) -> None:
    for name, value in vars(cls).items():
        if name == "needs_input_grad":
            continue  # written for Dynamo to read
        for function in (value, *(getattr(value, part, None) for part in ("fget", "fset"))):
            if isinstance(function, types.FunctionType):
                unseen(function)


for _cls in (AutogradContext, KeepingContext, NeedsInputGrad):
    _hide_methods(_cls)
