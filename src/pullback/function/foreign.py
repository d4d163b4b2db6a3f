"""Contexts that others make: `torch.compile`, `torch.func`, compiled autograd.

They know only PyTorch's Python names. `ContextView` puts ours on them, and keeps what they have no
place for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pullback.function.context import AutogradContext
from pullback.function.gradients import is_differentiable
from pullback.function.listening import ListeningContext
from pullback.function.unwritten import (
    NoDraws,
    derived,
    filled,
    run_plainly,
    underivable,
)


class ContextView:
    """A context that is not ours, under the names of `AutogradContext`.

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
