"""Double backward through saved intermediates: right, or an error that names the tensor.

A tensor that `forward` computes and saves has no history, so PyTorch differentiates `backward`
as if that tensor were a constant (its issues 76185 and 104040). Here, when `backward` runs with
`create_graph=True`, each such tensor is given a history: a node that, if a second derivative
reaches it, runs `forward` again on the inputs with gradient recording on, and pulls the gradient
through.

Nothing more is saved for it. Inputs come from what the user saved, or through weak references;
where one is gone, `DoubleBackwardError` says so. A tensor that does not move with the inputs (a
mask, a random draw) is a constant indeed and stays one; a tensor that moves without a history, or
otherwise than its history says, is an error (`evidence.py`).
"""

from __future__ import annotations

import ast
import contextlib
import enum
import inspect
import numbers
import textwrap
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.errors import DoubleBackwardError
from pullback.function import evidence
from pullback.function.gradients import is_differentiable
from pullback.function.isolation import isolated
from pullback.function.listening import ListeningContext
from pullback.function.signature import source_place
from pullback.function.slots import get_needs, has_no_values, transforms_active, version_of

if TYPE_CHECKING:
    from pullback.function.context import AutogradContext
    from pullback.function.info import FunctionInfo

_VALUES = (type(None), numbers.Number, str, bytes, enum.Enum, type, slice, range)
_SIMPLE = (*_VALUES, torch.dtype, torch.device, torch.layout, torch.memory_format)


# ---- the arguments of one call, and where they are ----


class _Plain:
    """An argument that is no tensor: held if it is a plain value, else by a weak reference."""

    __slots__ = ("held", "ref")

    def __init__(self, value: Any) -> None:
        self.held: Any = None
        self.ref: Callable[[], Any] | None = None
        if _is_simple(value):
            self.held = value
        else:
            try:
                self.ref = weakref.ref(value)
            except TypeError:
                self.ref = _gone

    @property
    def is_there(self) -> bool:
        """Whether the value can still be had."""
        return self.ref is None or self.ref() is not None

    @property
    def value(self) -> Any:
        """The value."""
        return self.held if self.ref is None else self.ref()


def _gone() -> None:
    return None


def _is_simple(value: Any) -> bool:
    if isinstance(value, (tuple, list, frozenset)):
        return all(_is_simple(item) for item in value)
    if isinstance(value, dict):
        return all(_is_simple(item) for pair in value.items() for item in pair)
    return isinstance(value, _SIMPLE)


class _Input:
    """A tensor argument: where it can be found again, and what stands for it if it cannot."""

    __slots__ = ("device", "dtype", "needs", "ref", "saved_at", "shape", "tie", "version")

    def __init__(self, tensor: Tensor, saved_at: int, dirty: bool) -> None:
        self.saved_at = saved_at
        self.needs = tensor.requires_grad
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.version = -1 if dirty else version_of(tensor)
        self.ref = weakref.ref(tensor)
        self.tie: Tensor | None = None
        if self.needs and saved_at < 0 and tensor.grad_fn is not None:
            with torch.enable_grad():
                self.tie = _apply(_Tie, tensor)

    def find(self, saved: Sequence[Tensor | None]) -> Tensor | None:
        """The tensor with the values that `forward` saw, or None when it is gone or changed."""
        if self.version == -1:
            return None
        if self.saved_at >= 0:  # PyTorch has checked its version, and a hook may have replaced it
            return saved[self.saved_at]
        tensor = self.ref()
        return tensor if tensor is not None and version_of(tensor) == self.version else None

    def handle(self, found: Tensor | None) -> Tensor | None:
        """A tensor that hangs in the graph where the input does."""
        return found if found is not None else self.tie if self.tie is not None else self.ref()

    def stand_ins(self) -> list[Tensor]:
        """Tensors of the same kind, above, below and about zero: how does `forward` treat them?"""
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            return [torch.zeros(self.shape, dtype=self.dtype, device=self.device)] * 3
        draw = torch.rand(self.shape, generator=torch.Generator().manual_seed(0)) + 0.5
        draw = draw.to(device=self.device, dtype=self.dtype)
        return [x.requires_grad_(self.needs) for x in (draw, -draw, draw - 1)]


_DEVICES = ("cpu", "cuda")


def _autocasts(device: str) -> bool:
    return torch.is_autocast_enabled(device)


class _Tie(TorchFunction):
    """An empty tensor that hangs in the graph where `x` does, and holds none of its memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return x.new_empty(0)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> None:
        return None


def _apply(function: Any, *args: Any) -> Any:
    return function.apply(*args)


# ---- attaching a history ----


class Origin:
    """Where the saved intermediates of one call came from."""

    __slots__ = ("arguments", "autocast", "info", "middles")

    def __init__(
        self, info: FunctionInfo, arguments: tuple[_Plain | _Input, ...], middles: list[int]
    ):
        self.info = info
        self.arguments = arguments
        self.middles = middles
        self.autocast = [(d, torch.get_autocast_dtype(d)) for d in _DEVICES if _autocasts(d)]

    def attach(
        self, ctx: AutogradContext, saved: tuple[Tensor | None, ...]
    ) -> tuple[Tensor | None, ...]:
        """`saved`, with a history for each intermediate."""
        replay = _Replay(self, ctx)
        handles = []
        for argument in self.arguments:
            if isinstance(argument, _Input):
                found = argument.find(saved)
                replay.present.append(found is not None)
                handles.append(argument.handle(found))
        middles = [saved[place] for place in self.middles]
        attached = _apply(_Reattach, replay, len(middles), *middles, *handles)
        row = list(saved)
        for place, tensor in zip(self.middles, attached, strict=True):
            row[place] = tensor
        return tuple(row)


def origin_of(
    ctx: AutogradContext, args: tuple[Any, ...], saved: tuple[Any, ...], outputs: tuple[Any, ...]
) -> Origin | None:
    """How to recompute the tensors in `saved` that are neither inputs nor outputs, if any are."""
    known = {id(tensor) for tensor in (*args, *outputs)}
    middles = [
        place
        for place, tensor in enumerate(saved)
        if tensor is not None and id(tensor) not in known and _lacks_history(tensor)
    ]
    if not middles:
        return None
    places = {id(tensor): place for place, tensor in reversed(list(enumerate(saved)))}
    dirty = {id(tensor) for tensor in ctx.dirty_tensors or ()}
    arguments = tuple(
        _Input(arg, places.get(id(arg), -1), id(arg) in dirty)
        if isinstance(arg, Tensor)
        else _Plain(arg)
        for arg in args
    )
    return Origin(ctx._pb_info, arguments, middles)


def _lacks_history(tensor: Tensor) -> bool:
    # A graph that `forward` recorded by itself, with gradients on, is the user's own affair.
    return is_differentiable(tensor) and not tensor.requires_grad


class _Reattach(TorchFunction):
    """Gives intermediates (that have no history) a history from the inputs they came from."""

    @staticmethod
    def forward(ctx: Any, replay: _Replay, count: int, *tensors: Any) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.replay, ctx.count = replay, count
        ctx.save_for_backward(*tensors)
        return tuple(tensor.detach() for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        tensors = ctx.saved_tensors
        middles, handles = tensors[: ctx.count], tensors[ctx.count :]
        gradients = ctx.replay.pull(middles, handles, cotangents)
        return (None, None, *[None] * ctx.count, *gradients)


# ---- running forward again ----


class _Replay:
    """One more run of `forward`, to pull cotangents of its intermediates back to its inputs."""

    def __init__(self, origin: Origin, ctx: AutogradContext) -> None:
        self.origin = origin
        self.info = origin.info
        self.slots = dict(ctx._pb_slots or {})
        self.data_slots = dict(ctx._pb_data_slots or {})
        self.user_saves = ctx._pb_user_saves or 0
        self.plain = ctx._pb_plain
        self.flags = tuple(get_needs(ctx))
        self.present: list[bool] = []

    def pull(
        self, middles: Sequence[Tensor], handles: Sequence[Tensor], cotangents: Sequence[Any]
    ) -> list[Any]:
        """The gradient of each handle, given the cotangents of the intermediates."""
        flowing = [i for i, cotangent in enumerate(cotangents) if cotangent is not None]
        self._require_arguments(flowing)
        if not all(self.present):
            self._require_constant(flowing)
            return [None] * len(handles)
        with torch.enable_grad():
            inputs = [h.view_as(h) if h.requires_grad else h for h in handles]
            try:
                again = self._run(inputs)
            except Exception as error:
                reason = f"`forward` cannot run again with gradient recording on ({error})"
                raise self._error(flowing[0], reason) from error
        linked = [i for i in flowing if again[i].requires_grad]
        self._weigh(inputs, again, middles, flowing, linked)
        wanted = [x for x in inputs if x.requires_grad]
        if not linked or not wanted:
            return [None] * len(handles)
        pulled = iter(
            torch.autograd.grad(
                [again[i] for i in linked],
                wanted,
                [cotangents[i] for i in linked],
                create_graph=torch.is_grad_enabled(),
                allow_unused=True,
            )
        )
        return [next(pulled) if x.requires_grad else None for x in inputs]

    def _run(self, inputs: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
        """The intermediates, computed from `inputs`; nothing outside is changed by it."""
        given = iter(inputs)
        args = [a.value if isinstance(a, _Plain) else next(given) for a in self.origin.arguments]
        ctx: Any = ListeningContext(self.flags, self.plain)
        cls = self.info.cls
        with isolated(args, seed), contextlib.ExitStack() as stack:
            for device, dtype in self.origin.autocast:
                stack.enter_context(torch.autocast(device, dtype))
            if self.info.signature.has_setup:
                output = cls.forward(*args)
                cls.setup_context(ctx, tuple(args), output)
            else:
                cls.forward(ctx, *args)
        saved = dict(enumerate(ctx._pb_saved[: self.user_saves] if self._keeps else ctx._pb_saved))
        kept = {place: ctx.__dict__.get(name) for name, place in self.slots.items()}
        kept |= {place: ctx.saved_data.get(key) for key, place in self.data_slots.items()}
        saved |= {self.user_saves + place: tensor for place, tensor in kept.items()}
        return [saved[place] for place in self.origin.middles]

    @property
    def _keeps(self) -> bool:
        return bool(self.slots or self.data_slots)

    # ---- what must hold ----

    def _weigh(
        self,
        inputs: Sequence[Tensor],
        again: Sequence[Tensor],
        middles: Sequence[Tensor],
        flowing: Sequence[int],
        linked: Sequence[int],
    ) -> None:
        """Raise unless the second run gave what was saved, with all of its history."""
        if transforms_active() or has_no_values((*inputs, *middles)):
            return  # there are no numbers to look at
        for i in linked:
            if not _close(again[i].detach(), middles[i].detach()):
                raise self._error(i, "`forward` gives other values when it runs again")
        cut = [i for i in flowing if i not in linked]
        for i in evidence.moves_smoothly(self._run, inputs, cut) if cut else ():
            raise self._error(i, "`forward` computes it outside autograd (detach, numpy, a kernel)")

        def differently(row: Sequence[Tensor]) -> list[Tensor]:
            return self._run(row, seed=1)  # other draws: what is random moves otherwise

        for i in evidence.contradicts(differently, inputs, again, linked):
            raise self._error(i, "its history is not the whole of it (detach, numpy, randomness)")

    def _require_arguments(self, flowing: Sequence[int]) -> None:
        for position, argument in enumerate(self.origin.arguments):
            if isinstance(argument, _Plain) and not argument.is_there:
                name = self.info.signature.name(position)
                raise self._error(flowing[0], f"argument `{name}` is gone")

    def _require_constant(self, flowing: Sequence[int]) -> None:
        """Raise unless the intermediates do not depend on the inputs at all."""
        arguments = self.origin.arguments
        inputs = [a for a in arguments if isinstance(a, _Input)]
        there = iter(self.present)
        gone = [i for i, a in enumerate(arguments) if isinstance(a, _Input) and not next(there)]
        names = ", ".join(self.info.signature.name(i) for i in gone)
        reason = f"input `{names}` was not saved and is gone or changed"
        for row in zip(*(a.stand_ins() for a in inputs), strict=True):
            try:
                with torch.enable_grad():
                    again = self._run(row)
                varying = evidence.moves_smoothly(self._run, row, flowing)
            except Exception as error:
                raise self._error(flowing[0], reason) from error
            for i in flowing:
                if again[i].requires_grad or i in varying:
                    raise self._error(i, reason)

    def _error(self, index: int, reason: str) -> DoubleBackwardError:
        info, place = self.info, self.origin.middles[index]
        name = self._names().get(place, f"saved tensor {place}")
        return DoubleBackwardError(
            f"`{info.name}.backward` must be given `{name}` with its history to be differentiated",
            at=source_place(info.cls.forward),
            expected="an input or an output, or inputs from which it can be computed again",
            got=f"`{name}`, computed inside `forward`; {reason}",
            fix="(1) save the inputs and recompute it in `backward`; (2) return it as one more "
            "output and save that; (3) decorate `backward` with `once_differentiable`",
        )

    def _names(self) -> dict[int, str]:
        """The user's expression for each saved place, read from the source where it can be."""
        names = {self.user_saves + place: f"ctx.{name}" for name, place in self.slots.items()}
        for key, place in self.data_slots.items():
            names[self.user_saves + place] = f'ctx.saved_data["{key}"]'
        cls = self.info.cls
        function = cls.setup_context if self.info.signature.has_setup else cls.forward
        for call in _save_calls(function):
            if not any(isinstance(arg, ast.Starred) for arg in call.args):
                names |= {place: ast.unparse(arg) for place, arg in enumerate(call.args)}
        return names


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    return torch.allclose(a, b, rtol=64 * torch.finfo(a.dtype).eps, atol=1e-8, equal_nan=True)


def _save_calls(function: Any) -> list[ast.Call]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return []
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [c for c in calls if getattr(c.func, "attr", "") == "save_for_backward"]
