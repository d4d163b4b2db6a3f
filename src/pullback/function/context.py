"""`AutogradContext`: what `ctx` is in `forward` and `backward`, with its traps closed.

It is PyTorch's own context (the node of the autograd graph) with the documented C++ names beside
the Python ones, and one change of behaviour: a tensor assigned to an attribute, or put into
`saved_data`, behaves as if it had been given to `save_for_backward`. Such tensors are collected
while `forward` runs and handed to PyTorch behind the ones the user saved, so in-place checks,
saved-tensor hooks, early release and the treatment of outputs are PyTorch's own.

Most contexts need none of this, and a call is cheap because they do not pay for it: a context
becomes a `KeepingContext` only when a tensor is assigned to it, an input is marked dirty, or an
intermediate is saved. Private state has class-level defaults and is written to the instance only
when it differs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.compiler import is_dynamo_compiling

from pullback.errors import (
    InputIndexError,
    MarkedNonTensorError,
    RepeatedDirtyWarning,
    RepeatedSaveWarning,
)
from pullback.function.gradients import gradient_row, look_at, user_backward
from pullback.function.slots import (
    forward_is_over,
    get_dirty,
    get_needs,
    get_non_differentiable,
    get_saved_tensors,
    get_to_save,
    is_inference,
    set_dirty,
    set_materialize,
    set_needs,
    set_non_differentiable,
    set_to_save,
    will_run,
)

if TYPE_CHECKING:
    from pullback.function.info import FunctionInfo
    from pullback.function.keeping import BackwardRun
    from pullback.function.replay import Origin


class AutogradContext(BackwardCFunction):
    """The context of one call: `ctx` in `forward`, `setup_context`, `backward` and `jvp`."""

    _pb_info: FunctionInfo
    _autograd_function_id: int
    _pb_plain: tuple[int, ...] = ()  # positions of the arguments that are not tensors
    _pb_kept: list[Any] | None = None  # attribute tensors, while forward runs
    _pb_slots: dict[str, int] | None = None  # attribute name -> place behind the user's saves
    _pb_user_saves: int | None = None  # how many of the saved tensors the user named
    _pb_origin: Origin | None = None  # how to recompute saved intermediates
    _pb_list_output = False
    _pb_in_jvp = False
    _pb_runs: dict[int, BackwardRun] | None = None  # per thread, while its backward runs
    _pb_data: dict[str, Any] | None = None  # behind `saved_data`
    _pb_data_slots: dict[str, int] | None = None  # its tensors' places behind the user's saves
    _pb_needs: NeedsInputGrad | None = None
    _pb_flags: tuple[bool, ...] | None = None  # the flags alone, for compiled autograd to read
    _pb_arguments: tuple[Any, ...] | None = None  # of a call whose backward leaves some to derive
    _pb_live: tuple[bool, ...] | None = None  # which tensor inputs compiled autograd's run needs

    # ---- saving ----

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep `tensors` until backward; a second call replaces the first."""
        if get_to_save(self) is not None:
            self._pb_warn_once(RepeatedSaveWarning, "save_for_backward", "saved")
        set_to_save(self, tensors)

    def get_saved_variables(self) -> tuple[Tensor | None, ...]:
        """The C++ name of `saved_tensors`."""
        return cast("tuple[Tensor | None, ...]", self.saved_tensors)

    @property
    def saved_data(self) -> Any:
        """Any data, under string keys; a tensor put here in `forward` behaves as if saved."""
        if "saved_data" in self.__dict__:
            return self.__dict__["saved_data"]
        self._pb_become_keeping()
        return SavedData(self)

    @saved_data.setter
    def saved_data(self, data: Any) -> None:
        self.__dict__["saved_data"] = data  # an attribute of the user's own, whatever it is

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Keep `tensors` for jvp, which reads them as `saved_tensors`."""
        self._pb_become_keeping()
        BackwardCFunction.save_for_forward(self, *tensors)  # type: ignore[arg-type]

    def __setattr__(self, name: str, value: Any) -> None:
        # While forward runs the node has no outputs yet. PyTorch cannot save an inference tensor,
        # and a name that the class has would not be looked up among the kept ones.
        can_keep = (
            isinstance(value, Tensor) and not forward_is_over(self) and not is_inference(value)
        )
        if can_keep and not hasattr(type(self), name):
            self._pb_keep(name, value)
            return
        if self._pb_slots is not None and name in self._pb_slots:
            self.__delattr__(name)
        object.__setattr__(self, name, value)

    def _pb_keep(self, name: str, tensor: Tensor) -> None:
        self._pb_become_keeping()
        state = self.__dict__
        state.pop(name, None)
        slots = state.setdefault("_pb_slots", {})
        kept = state.setdefault("_pb_kept", [])
        if name in slots:
            kept[slots[name]] = tensor
        else:
            slots[name] = len(kept)
            kept.append(tensor)

    def _pb_become_keeping(self) -> None:
        if self.__class__ is not self._pb_info.keeping:
            object.__setattr__(self, "__class__", self._pb_info.keeping)

    def _pb_tensor_at(self, place: int) -> Any:
        """The tensor at `place` behind the user's saves."""
        if self._pb_kept is not None:
            return self._pb_kept[place]
        place += self._pb_user_saves or 0
        pending = get_to_save(self)
        return self._pb_all_saved(place)[place] if pending is None else pending[place]

    def _pb_all_saved(self, since: int = 0) -> tuple[Tensor | None, ...]:
        """Everything that was saved, attributes behind the user's own; needed from `since` on."""
        return cast("tuple[Tensor | None, ...]", get_saved_tensors(self))

    # ---- marks ----

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Name the inputs that `forward` changes in place; a second call replaces the first."""
        self._pb_require_tensors("mark_dirty", tensors)
        if get_dirty(self) is not None:
            self._pb_warn_once(RepeatedDirtyWarning, "mark_dirty", "marked")
        set_dirty(self, tensors)

    def get_and_bump_dirty(self) -> tuple[Tensor, ...]:
        """The tensors marked dirty, each one's version raised by one."""
        tensors: tuple[Tensor, ...] = get_dirty(self) or ()
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)
        return tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Name the outputs that carry no gradient; a second call replaces the first."""
        self._pb_require_tensors("mark_non_differentiable", tensors)
        set_non_differentiable(self, tensors)

    def get_non_differentiable(self) -> tuple[Tensor, ...]:
        """The outputs marked non-differentiable by the last call."""
        return cast("tuple[Tensor, ...]", get_non_differentiable(self) or ())

    def set_materialize_grads(self, value: bool) -> None:
        """Whether missing cotangents reach `backward` as zeros (True) or `None`."""
        set_materialize(self, value)

    # ---- which gradients are needed ----

    @property  # type: ignore[override]
    def needs_input_grad(self) -> NeedsInputGrad:
        """Which inputs need a gradient: `needs_input_grad[i]`, or `(i)` as in C++."""
        if is_dynamo_compiling():  # from torch 2.14 on, Dynamo reads this very function
            return cast(NeedsInputGrad, self._pb_flags or get_needs(self))
        if self._pb_needs is None:
            needs = NeedsInputGrad(self._pb_info.group(get_needs(self)))
            needs._ctx = weakref.ref(self)
            self.__dict__["_pb_needs"] = needs
        return cast(NeedsInputGrad, self._pb_needs)

    @needs_input_grad.setter
    def needs_input_grad(self, flags: Any) -> None:
        set_needs(self, flags)
        self.__dict__["_pb_needs"] = flags

    # ---- what the engine calls ----

    def apply(self, *cotangents: Any) -> Any:
        """Run the user's backward once and give the engine one gradient per input."""
        info, first = self._pb_info, cotangents[0]
        # The short way: nothing unusual, and this shape was looked at before.
        if first.__class__ is Tensor and info.is_usual and first.shape in info.seen:
            result = info.cls.backward(self, *cotangents)
            if result.__class__ is Tensor and info.is_single:
                return result
            return gradient_row(self, result)
        return self._pb_apply_with_care(cotangents)

    def _pb_apply_with_care(self, cotangents: tuple[Any, ...]) -> Any:
        if self._pb_list_output:
            cotangents = cotangents[:-1]
        info = self._pb_info
        args = (list(cotangents),) if info.is_boxed else cotangents
        first = cotangents[0] if cotangents else None
        result = user_backward(info)(self, *args)
        gradients = gradient_row(self, result, cotangents)
        if first.__class__ is not Tensor:
            look_at(self, gradients)
        elif first.shape not in info.seen:
            look_at(self, gradients)
            if len(info.seen) < 1000:
                info.seen.add(first.shape)
        return result if result.__class__ is Tensor else gradients

    def apply_boxed(self, cotangents: list[Any]) -> Any:
        """As `apply`, with the cotangents in one list that the user's backward may empty."""
        if self._pb_list_output:
            del cotangents[-1]
        given = tuple(cotangents) if self._pb_info.completes else None
        result = gradient_row(self, user_backward(self._pb_info)(self, cotangents), given)
        look_at(self, result)
        return result

    def apply_jvp(self, *tangents: Any) -> Any:
        """Run the user's jvp right after forward."""
        self.__dict__["_pb_in_jvp"] = True
        try:
            result = self._pb_info.cls.jvp(self, *tangents)
        finally:
            del self.__dict__["_pb_in_jvp"]
            if self.next_functions:  # else there will be no backward, and jvp may be asked again
                self.__dict__["_pb_kept"] = None
        if not self._pb_list_output:
            return result
        return (*(result if isinstance(result, (tuple, list)) else (result,)), None)

    def _compiled_autograd_key(self) -> tuple[int, ...]:
        edges = self.next_functions if self._pb_info.is_translated else ()
        live = tuple(node is not None and will_run(node) for node, _ in edges)
        self.__dict__["_pb_live"] = live if edges else None
        self.__dict__["_pb_flags"] = tuple(self.needs_input_grad)
        key = self._pb_info.cls._compiled_autograd_key(self)
        return (*key, *map(int, live), *self._pb_info.layout(self))

    # ---- the checks of the calls above ----

    def _pb_require_tensors(self, call: str, tensors: tuple[Any, ...]) -> None:
        for position, tensor in enumerate(tensors):
            if not isinstance(tensor, Tensor):
                raise MarkedNonTensorError(
                    f"`{self._pb_info.name}`: `{call}` must be given tensors",
                    at=self._pb_info.signature.place,
                    got=f"{type(tensor).__name__} as argument {position}",
                    torch=f"{call} can only accept variables, but argument {position} is not one",
                )

    def _pb_warn_once(self, kind: Any, call: str, done: str) -> None:
        self._pb_info.warn_once(
            kind(
                f"`{self._pb_info.name}` must call `{call}` at most once",
                at=self._pb_info.signature.place,
                got=f"a second call, which replaces what the first one {done}",
                fix=f"give `{call}` all tensors in one call",
            )
        )


# ---- `ctx.saved_data` ----


class SavedData(MutableMapping[str, Any]):
    """Any data under string keys; PyTorch holds the tensors among it once forward is over."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: AutogradContext) -> None:
        self._ctx = ctx

    def __getitem__(self, key: str) -> Any:
        places = self._ctx._pb_data_slots
        if places is not None and key in places:
            return self._ctx._pb_tensor_at(places[key])
        return (self._ctx._pb_data or {})[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if self._ctx._pb_data_slots is not None:
            self._ctx._pb_data_slots.pop(key, None)
        self._ctx.__dict__.setdefault("_pb_data", {})[key] = value

    def __delitem__(self, key: str) -> None:
        if self._ctx._pb_data_slots is None or self._ctx._pb_data_slots.pop(key, None) is None:
            del (self._ctx._pb_data or {})[key]

    def __iter__(self) -> Iterator[str]:
        return iter([*(self._ctx._pb_data or {}), *(self._ctx._pb_data_slots or {})])

    def __len__(self) -> int:
        return len(self._ctx._pb_data or {}) + len(self._ctx._pb_data_slots or {})

    def __repr__(self) -> str:
        return f"SavedData({dict(self)})"

    def hand_over(self, first: int) -> list[Tensor]:
        """The tensors in here, taken out and given places from `first` on."""
        data = self._ctx._pb_data or {}
        tensors = {key: data.pop(key) for key in list(data) if isinstance(data[key], Tensor)}
        places = {key: place for place, key in enumerate(tensors, first)}
        self._ctx.__dict__["_pb_data_slots"] = places
        return list(tensors.values())


# ---- `ctx.needs_input_grad` ----


class NeedsInputGrad(tuple[bool, ...]):
    """Which inputs need a gradient: a tuple as in Python, and a question as in C++.

    `needs[i]` counts every argument and says whether it required grad in `forward`. `needs(i)`
    counts tensor inputs only and, asked in `backward`, answers for the backward under way;
    `needs([(first, last), ...])` is whether any index in the half-open ranges is needed.
    """

    _ctx: Callable[[], AutogradContext | None]

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)

    def __call__(self, index: int | Iterable[tuple[int, int]]) -> bool:
        ctx = self._ctx()
        if ctx is None:
            raise ReferenceError("`needs_input_grad` was called after its context was freed")
        if isinstance(index, int):
            return _needs(ctx, index)
        ranges = list(index)
        return any(_needs(ctx, i) for first, last in ranges for i in range(first, last))


def _needs(ctx: AutogradContext, index: int) -> bool:
    edges = ctx.next_functions
    if not edges:
        return False  # nothing is recorded, so no backward will ask
    if not 0 <= index < len(edges):
        raise InputIndexError(
            f"`{ctx._pb_info.name}`: `needs_input_grad(i)` must name one of the tensor inputs",
            at=ctx._pb_info.signature.place,
            expected=f"0 <= i < {len(edges)}",
            got=f"i = {index}",
            fix="count tensor inputs only, or use `needs_input_grad[i]` to count every argument",
        )
    node = edges[index][0]
    return node is not None and will_run(node)
