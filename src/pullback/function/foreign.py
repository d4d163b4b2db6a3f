"""The same Function in somebody else's hands: `torch.compile`, `torch.func`, compiled autograd.

These run `cls.forward`, `cls.setup_context` and `cls.backward` themselves, with contexts of their
own making that know only PyTorch's Python names and only tuples of gradients. A class that uses
more than that gets methods which translate: `ContextView` puts our names on a foreign context, and
a mapping becomes a tuple. A class that uses PyTorch's names only is left exactly as it was written.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.function.context import AutogradContext
from pullback.function.gradients import by_name, is_differentiable
from pullback.function.listening import ListeningContext
from pullback.function.signature import Signature, codes_of, unwrapped
from pullback.function.unwritten import (
    NoDraws,
    derived,
    filled,
    leaves_some,
    run_plainly,
    underivable,
)

_OUR_NAMES = {
    "saved_data",
    "get_saved_variables",
    "get_and_bump_dirty",
    "get_non_differentiable",
}
_METHODS = ("forward", "setup_context", "backward", "vjp", "jvp")
_UNWRITTEN = tuple(getattr(TorchFunction, name) for name in _METHODS)


class ContextView:
    """A context that somebody else made, under the names of `AutogradContext`.

    `slots` are the places of attribute tensors behind the first `user_saves` saved ones, when the
    foreign context was made from one of ours.
    """

    _OWN = ("_pb_ctx", "_pb_slots", "_pb_user_saves")

    def __init__(
        self, ctx: Any, slots: dict[str, int] | None = None, user_saves: int | None = None
    ) -> None:
        object.__setattr__(self, "_pb_ctx", ctx)
        object.__setattr__(self, "_pb_slots", slots)
        object.__setattr__(self, "_pb_user_saves", user_saves)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` kept."""
        saved = tuple(self._pb_ctx.saved_tensors)
        return saved if self._pb_user_saves is None else saved[: self._pb_user_saves]

    def get_saved_variables(self) -> tuple[Any, ...]:
        """The C++ name of `saved_tensors`."""
        return self.saved_tensors

    @property
    def saved_data(self) -> Any:
        """Any data, under string keys."""
        if self._pb_user_saves is None:
            data = self._pb_ctx._pb_data
            return {} if data is None else data
        data = dict(self._pb_ctx._pb_data or {})
        for key, place in (self._pb_ctx._pb_data_slots or {}).items():
            data[key] = self._pb_ctx.saved_tensors[self._pb_user_saves + place]
        return data

    @property
    def needs_input_grad(self) -> Any:
        """Which inputs need a gradient, as a tuple and as a question."""
        return ForeignNeeds(
            tuple(self._pb_ctx.needs_input_grad), self._pb_ctx._pb_plain, self._pb_ctx._pb_live
        )

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep `tensors` until backward, and behind them the inputs that a backward left out."""
        self._pb_ctx._pb_saves = len(tensors)
        self._pb_ctx.save_for_backward(*tensors, *self._pb_ctx._pb_inputs)

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep `tensors` for jvp."""
        self._pb_ctx.save_for_forward(*tensors)

    def mark_dirty(self, *tensors: Any) -> None:
        """Name the inputs that `forward` changes in place."""
        self._pb_ctx._pb_dirty = tensors
        self._pb_ctx.mark_dirty(*tensors)

    def get_and_bump_dirty(self) -> tuple[Any, ...]:
        """The tensors marked dirty, each one's version raised by one."""
        for tensor in self._pb_ctx._pb_dirty:
            torch.autograd.graph.increment_version(tensor)
        return tuple(self._pb_ctx._pb_dirty)

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Name the outputs that carry no gradient."""
        self._pb_ctx._pb_non_differentiable = tensors
        self._pb_ctx.mark_non_differentiable(*tensors)

    def get_non_differentiable(self) -> tuple[Any, ...]:
        """The outputs marked non-differentiable."""
        return tuple(self._pb_ctx._pb_non_differentiable)

    def set_materialize_grads(self, value: bool) -> None:
        """Whether undefined cotangents become zeros."""
        self._pb_ctx.set_materialize_grads(value)

    def __getattr__(self, name: str) -> Any:
        slots = self._pb_slots
        if slots is not None and name in slots:
            return self._pb_ctx.saved_tensors[(self._pb_user_saves or 0) + slots[name]]
        return getattr(self._pb_ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._pb_ctx, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._pb_ctx, name)


class ForeignNeeds:
    """`needs_input_grad` of a foreign context: one flag per argument, and the C++ question.

    `live` is the answer for the backward under way, one flag per tensor input, where it is known.
    """

    flags: tuple[bool, ...] = ()  # Dynamo of torch 2.11 asks for the length before `__init__` ran
    live: tuple[bool, ...] = ()

    def __init__(
        self, flags: tuple[bool, ...], plain: tuple[int, ...], live: tuple[bool, ...] | None
    ) -> None:
        self.flags = flags
        if live is None:
            live = tuple([flag for i, flag in enumerate(flags) if i not in plain])
        self.live = live

    def __call__(self, index: Any) -> bool:
        if isinstance(index, int):
            return self.live[index]
        for first, last in index:
            for i in range(first, last):
                if self.live[i]:
                    return True
        return False

    def __getitem__(self, index: Any) -> Any:
        return self.flags[index]

    def __iter__(self) -> Iterator[bool]:
        return iter(self.flags)

    def __len__(self) -> int:
        return len(self.flags)


def opened_view(ctx: Any, args: tuple[Any, ...]) -> Any:
    """A view of `ctx` for the start of a call, when the context is not one of ours."""
    if isinstance(ctx, (AutogradContext, ListeningContext)):
        return ctx
    ctx._pb_data = {}
    ctx._pb_plain = tuple(i for i, arg in enumerate(args) if not isinstance(arg, Tensor))
    ctx._pb_live = None
    ctx._pb_dirty = ()
    ctx._pb_non_differentiable = ()
    ctx._pb_inputs = ()
    return ContextView(ctx)


def opened_keeping_view(ctx: Any, args: tuple[Any, ...]) -> Any:
    """As `opened_view`, for a backward that leaves gradients to be derived: inputs are saved."""
    seen = opened_view(ctx, args)
    if seen is not ctx:
        ctx._pb_inputs = tuple(arg for arg in args if isinstance(arg, Tensor))
        ctx._pb_values = tuple(None if isinstance(arg, Tensor) else arg for arg in args)
        ctx._pb_data_slots = None
        seen.save_for_backward()
    return seen


def view(ctx: Any) -> Any:
    """A view of `ctx` after its call, when the context is not one of ours."""
    if isinstance(ctx, (AutogradContext, ContextView, ListeningContext)):
        return ctx
    return ContextView(ctx)


def keeping_view(ctx: Any) -> Any:
    """As `view`, where the inputs stand behind what the user saved."""
    seen = view(ctx)
    return seen if seen is ctx else ContextView(ctx, None, ctx._pb_saves)


def complete_foreign(
    cls: Any, names: tuple[str, ...], seen: Any, row: tuple[Any, ...], cotangents: Any
) -> Any:
    """`row` with the gradients that are left to be derived filled in, under `torch.func`."""
    ctx = seen._pb_ctx
    flags = tuple(ctx.needs_input_grad)
    wanted = [i for i, gradient in enumerate(row) if gradient is derived and flags[i]]
    if not wanted:
        return filled(row, {})
    tensors = iter(tuple(ctx.saved_tensors)[ctx._pb_saves :])
    values = enumerate(ctx._pb_values)
    args = [value if i in ctx._pb_plain else next(tensors) for i, value in values]

    def program(*inputs: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(wanted, inputs, strict=True))
        output = run_plainly(cls, [given.get(i, arg) for i, arg in enumerate(args)])
        leaves = output if isinstance(output, (tuple, list)) else (output,)
        pairs = zip(leaves, cotangents, strict=True)
        return tuple(y for y, g in pairs if g is not None and is_differentiable(y))

    name = names[wanted[0]]
    if ctx._pb_dirty:
        raise underivable(cls, name, "`forward` changes an input in place")
    used = tuple(g for g in cotangents if g is not None and is_differentiable(g))
    vjp: Any = torch.func.vjp
    try:
        with NoDraws():
            pull = vjp(program, *[args[i] for i in wanted])[1]
    except Exception as error:
        raise underivable(cls, name, str(error)) from error
    return filled(row, dict(zip(wanted, pull(used), strict=True)))


# ---- which classes need translating ----


def _mentions(function: Any) -> bool:
    return any(
        _OUR_NAMES.intersection(code.co_names) or _calls_needs(code)
        for code in codes_of(unwrapped(function))
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
        for code in codes_of(unwrapped(function))
    )


# ---- methods that translate ----


def translated(cls: Any, signature: Signature) -> dict[str, Any]:
    """The methods of `cls` that foreign callers are to see in place of the user's."""
    written = {name: _written(getattr(cls, name, None)) for name in _METHODS}
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


def is_translated(cls: Any) -> bool:
    """Whether foreign callers see methods of `cls` that are not the user's own."""
    return any(_written(getattr(cls, n)) is not getattr(cls, n) for n in _METHODS)


def _written(method: Any) -> Any:
    """The user's own method, also where a base class has it translated already."""
    return getattr(method, "_pullback_user", method)


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
    exec(compile(source, f"<pullback {function.__qualname__}>", "exec"), space)
    wrapper = space["make"](function, make_view, finish)
    wrapper.__defaults__ = function.__defaults__
    wrapper.__doc__, wrapper.__qualname__ = function.__doc__, function.__qualname__
    wrapper.__name__ = function.__name__
    wrapper.__module__, wrapper.__wrapped__ = function.__module__, function
    wrapper._pullback_user = function
    return wrapper
