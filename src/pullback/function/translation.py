"""The same Function when others call it: `torch.compile`, `torch.func`, compiled autograd.

These run `cls.forward`, `cls.setup_context` and `cls.backward` themselves, with contexts of their
own making (`foreign.py`), and take only tuples of gradients. A class that uses more than PyTorch's
own names gets methods which translate: they see the context through a view, and a mapping becomes a
tuple. A class that uses PyTorch's names only is left exactly as it was written.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Mapping
from typing import Any

from torch.autograd.function import Function as TorchFunction

from pullback.function.foreign import (
    complete_foreign,
    keeping_view,
    opened_keeping_view,
    opened_view,
    view,
)
from pullback.function.generated import run_text
from pullback.function.gradients import by_name
from pullback.function.signature import METHODS, Signature, codes_of, own_method, written_function
from pullback.function.unwritten import leaves_some

_OUR_NAMES = {
    "saved_data",
    "get_saved_variables",
    "get_and_bump_dirty",
    "get_non_differentiable",
}
_UNWRITTEN = tuple(getattr(TorchFunction, name) for name in METHODS)


# ---- which classes need translating ----


def _mentions(function: Any) -> bool:
    return any(
        _OUR_NAMES.intersection(code.co_names) or _calls_needs(code)
        for code in codes_of(written_function(function))
    )


def _calls_needs(code: types.CodeType) -> bool:
    """Whether `needs_input_grad` is called like a method rather than indexed."""
    for step in dis.get_instructions(code):
        if step.argval != "needs_input_grad":
            continue
        if step.opname == "LOAD_METHOD" or (step.opname == "LOAD_ATTR" and _is_method(step)):
            return True
    return False


def _is_method(step: dis.Instruction) -> bool:
    # From Python 3.12 on, the low bit of LOAD_ATTR's argument marks a method call.
    return hasattr(dis, "hasarg") and bool((step.arg or 0) & 1)


def _builds_mapping(function: Any) -> bool:
    """Whether `function` builds a mapping anywhere."""
    return any(
        "dict" in code.co_names
        or any(
            s.opname.startswith("BUILD_") and "MAP" in s.opname for s in dis.get_instructions(code)
        )
        for code in codes_of(written_function(function))
    )


# ---- methods that translate ----


def translated(cls: Any, signature: Signature) -> dict[str, Any]:
    """The methods of `cls` that foreign callers are to see in place of the user's."""
    written = {name: own_method(getattr(cls, name, None)) for name in METHODS}
    own = any(_mentions(function) for function in written.values())
    own = own or _builds_mapping(written["backward"]) or _builds_mapping(written["vjp"])
    completes = leaves_some(cls)
    own = own or completes
    opened = opened_keeping_view if completes else opened_view
    methods: dict[str, Any] = {}
    if own and signature.has_setup:
        methods["setup_context"] = _setup(written["setup_context"], opened)
    elif own:
        call = "_pb_view({0}, ({1},))"
        methods["forward"] = _same_parameters(written["forward"], call, opened)
    for name in ("backward", "vjp") if own else ():
        methods[name] = _backward(written[name], signature, cls if completes else None)
    if own:
        see = keeping_view if completes else view
        methods["jvp"] = _same_parameters(written["jvp"], "_pb_view({0})", see)
    changed = {name: method for name, method in methods.items() if method is not written[name]}
    return {name: staticmethod(method) for name, method in changed.items()}


def _setup(setup_context: Any, opened: Callable[..., Any]) -> Any:
    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        setup_context(opened(ctx, inputs), inputs, output)

    setup._pullback_user = setup_context  # type: ignore[attr-defined]
    return setup


def _backward(backward: Any, signature: Signature, completed: Any) -> Any:
    # Plain texts in the closure: Dynamo cannot look into a Signature.
    owner, names = signature.owner, (*signature.names, *signature.keyword_only)

    def as_tuple(result: Any, seen: Any, cotangents: Any) -> Any:
        return by_name(owner, names, result) if isinstance(result, Mapping) else result

    def complete(result: Any, seen: Any, cotangents: Any) -> Any:
        row = as_tuple(result, seen, cotangents)
        row = row if isinstance(row, tuple) else (row,)
        return complete_foreign(completed, names, seen, row, cotangents)

    if completed is None:
        return _same_parameters(backward, "_pb_view({0})", view, finish=as_tuple)
    return _same_parameters(backward, "_pb_view({0})", keeping_view, finish=complete)


def _as_it_is(result: Any, seen: Any, rest: Any) -> Any:
    return result


def _same_parameters(
    function: Any, context: str, make_view: Callable[..., Any], finish: Any = _as_it_is
) -> Any:
    """`function` with its first argument seen through `make_view`, and the very same parameters.

    What it returned goes through `finish`, unless its context needed no view.

    PyTorch reads parameter names and defaults of `forward` and `backward` from their code objects,
    so the wrapper is compiled with the parameters of the original.
    """
    if not isinstance(function, types.FunctionType) or function in _UNWRITTEN:
        return function
    code = function.__code__
    count = code.co_argcount
    names = code.co_varnames[: count + code.co_kwonlyargcount]
    if code.co_kwonlyargcount or code.co_flags & 0x08 or not names:
        return function
    named = list(names)
    call = named[1:]
    if code.co_flags & 0x04:
        star = f"*{code.co_varnames[count]}"
        named, call = [*named, star], [*call, star]
    ctx = context.format(named[0], ", ".join(call)).replace("(,)", "()")
    rest, name = ", ".join(["", *call]), "method"
    row = "".join(f"{arg}, " for arg in call)
    # A closure, because Dynamo looks up globals in the module that `__name__` names.
    source = (
        "def make(_pb_user, _pb_view, _pb_finish):\n"
        f"    def {name}({', '.join(named)}):\n"
        f"        _pb_seen = {ctx}\n"
        f"        if _pb_seen is {named[0]}:\n"
        f"            return _pb_user(_pb_seen{rest})\n"
        f"        return _pb_finish(_pb_user(_pb_seen{rest}), _pb_seen, ({row}))\n"
        f"    return {name}\n"
    )
    space: dict[str, Any] = {"__name__": __name__}
    run_text(source, f"pullback {function.__qualname__}", space)
    wrapper = space["make"](function, make_view, finish)
    wrapper.__defaults__ = function.__defaults__
    wrapper.__doc__, wrapper.__qualname__ = function.__doc__, function.__qualname__
    wrapper.__name__ = function.__name__
    wrapper.__module__, wrapper.__wrapped__ = function.__module__, function
    wrapper._pullback_user = function
    return wrapper
