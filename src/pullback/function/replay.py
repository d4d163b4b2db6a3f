"""Double backward through saved intermediates: right, or an error that names the tensor.

A tensor that `forward` computes and saves has no history, so PyTorch differentiates `backward`
as if that tensor were a constant (its issues 76185 and 104040). Here, when `backward` runs with
`create_graph=True`, each such tensor is given a history: a node that, if a second derivative
reaches it, runs `forward` again on the inputs with gradient recording on, and pulls the gradient
through.

Nothing more is saved for it. Inputs come from what the user saved, or through weak references;
where one is gone, `DoubleBackwardError` says so. A tensor that `forward` would give unchanged for
nearby inputs (a mask, a random draw) is a constant indeed and stays one.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction
from torch.autograd.function import FunctionCtx

from pullback.errors import DoubleBackwardError
from pullback.function.gradients import is_differentiable
from pullback.function.signature import place_of
from pullback.function.slots import get_needs

if TYPE_CHECKING:
    from pullback.function.context import AutogradContext
    from pullback.function.door import Door


class _Plain:
    """An argument that is no tensor: held as it is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Input:
    """A tensor argument: where it can be found again, and what stands for it if it cannot."""

    __slots__ = ("device", "dtype", "needs", "ref", "saved_at", "shape", "tie", "version")

    def __init__(self, tensor: Tensor, saved_at: int, dirty: bool) -> None:
        self.saved_at = saved_at
        self.needs = tensor.requires_grad
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.version = -1 if dirty else tensor._version
        self.ref = weakref.ref(tensor)
        self.tie: Tensor | None = None
        if self.needs and saved_at < 0 and tensor.grad_fn is not None:
            with torch.enable_grad():
                self.tie = _apply(_Tie, tensor)

    def find(self, saved: Sequence[Tensor | None]) -> Tensor | None:
        """The tensor with the values that `forward` saw, or None when it is gone or changed."""
        tensor = saved[self.saved_at] if self.saved_at >= 0 else self.ref()
        return tensor if tensor is not None and tensor._version == self.version else None

    def stand_in(self) -> Tensor:
        """Any tensor of the same kind, to see how `forward` treats one."""
        if not self.dtype.is_floating_point and not self.dtype.is_complex:
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        generator = torch.Generator(self.device).manual_seed(0)
        draw = torch.rand(self.shape, generator=generator, device=self.device) + 0.5
        return draw.to(self.dtype).requires_grad_(self.needs)


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


class Origin:
    """Where the saved intermediates of one call came from."""

    __slots__ = ("arguments", "door", "middles")

    def __init__(self, door: Door, arguments: tuple[_Plain | _Input, ...], middles: list[int]):
        self.door = door
        self.arguments = arguments
        self.middles = middles

    def attach(
        self, ctx: AutogradContext, saved: tuple[Tensor | None, ...]
    ) -> tuple[Tensor | None, ...]:
        """`saved`, with a history for each intermediate."""
        inputs = [a for a in self.arguments if isinstance(a, _Input)]
        found = [a.find(saved) for a in inputs]
        handles = [a.tie if t is None else t for a, t in zip(inputs, found, strict=True)]
        replay = _Replay(self, dict(ctx._pb_slots or {}), ctx._pb_user_saves)
        replay.present = [tensor is not None for tensor in found]
        replay.flags = tuple(get_needs(ctx))
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
    return Origin(ctx._pb_door, arguments, middles)


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


class _Replay:
    """One more run of `forward`, to pull cotangents of its intermediates back to its inputs."""

    def __init__(self, origin: Origin, slots: dict[str, int], user_saves: int | None) -> None:
        self.origin = origin
        self.door = origin.door
        self.slots = slots
        self.user_saves = user_saves
        self.present: list[bool] = []
        self.flags: tuple[bool, ...] = ()

    def pull(
        self, middles: Sequence[Tensor], handles: Sequence[Tensor], cotangents: Sequence[Any]
    ) -> list[Any]:
        """The gradient of each handle, given the cotangents of the intermediates."""
        flowing = [i for i, cotangent in enumerate(cotangents) if cotangent is not None]
        if not all(self.present):
            self._require_constant(middles, flowing)
            return [None] * len(handles)
        with torch.enable_grad():
            inputs = [h.view_as(h) if h.requires_grad else h for h in handles]
            again = self._again(inputs, middles)
        linked = [i for i in flowing if again[i].requires_grad]
        for i in flowing:
            self._require_same(again[i], middles[i], i, linked=i in linked)
        cut = [i for i in flowing if i not in linked]
        for i in self._varying(inputs, cut):
            raise self._error(i, "`forward` computes it outside autograd (detach, numpy, a kernel)")
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

    # ---- running forward again ----

    def _again(self, inputs: Sequence[Tensor], middles: Sequence[Tensor]) -> list[Tensor]:
        """The intermediates, recomputed from `inputs`."""
        try:
            return self._run(inputs)
        except Exception as error:
            reason = f"`forward` cannot run again with gradient recording on ({error})"
            raise self._error(0, reason) from error

    def _run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        given = iter(inputs)
        args = [a.value if isinstance(a, _Plain) else next(given) for a in self.origin.arguments]
        ctx = _ReplayContext(self.flags)
        cls = self.door.cls
        with torch.random.fork_rng():
            torch.manual_seed(0)
            if self.door.signature.has_setup:
                output = cls.forward(*args)
                cls.setup_context(ctx, tuple(args), output)
            else:
                cls.forward(ctx, *args)
        kept = [getattr(ctx, name) for name in sorted(self.slots, key=self.slots.__getitem__)]
        saved = [*ctx.saved, *kept]
        return [saved[place] for place in self.origin.middles]

    def _varying(self, inputs: Sequence[Tensor], which: Sequence[int]) -> list[int]:
        """Those of the intermediates `which` that change when the inputs change a little."""
        if not which:
            return []
        with torch.no_grad():
            base = self._run(inputs)
            near = [self._run([_nudged(x, ulps) for x in inputs]) for ulps in (1024, 64)]
        return [i for i in which if all(not _same(base[i], other[i]) for other in near)]

    # ---- what must hold ----

    def _require_constant(self, middles: Sequence[Tensor], flowing: Sequence[int]) -> None:
        """Raise unless the intermediates do not depend on the inputs at all."""
        arguments = self.origin.arguments
        inputs = [a.stand_in() for a in arguments if isinstance(a, _Input)]
        names = [self.door.signature.name(i) for i, a in enumerate(arguments) if self._gone(i, a)]
        reason = f"input `{', '.join(names)}` was not saved and is gone or changed"
        try:
            with torch.enable_grad():
                again = self._run(inputs)
            varying = self._varying(inputs, flowing)
        except Exception as error:
            raise self._error(flowing[0], reason) from error
        for i in flowing:
            if again[i].requires_grad or i in varying:
                raise self._error(i, reason)

    def _gone(self, position: int, argument: _Plain | _Input) -> bool:
        before = sum(isinstance(a, _Input) for a in self.origin.arguments[:position])
        return isinstance(argument, _Input) and not self.present[before]

    def _require_same(self, again: Tensor, middle: Tensor, index: int, *, linked: bool) -> None:
        """Raise unless the second run of `forward` gave the values that were saved."""
        if linked and not _close(again.detach(), middle.detach()):
            raise self._error(index, "`forward` gives other values when it runs again")

    def _error(self, index: int, reason: str) -> DoubleBackwardError:
        door, place = self.door, self.origin.middles[index]
        name = saved_names(door, self.slots, self.user_saves).get(place, f"saved tensor {place}")
        return DoubleBackwardError(
            f"`{door.name}.backward` must be given `{name}` with its history to be differentiated",
            at=place_of(door.cls.forward),
            expected="an input or an output, or inputs from which it can be computed again",
            got=f"`{name}`, computed inside `forward`; {reason}",
            fix="(1) save the inputs and recompute it in `backward`; (2) return it as one more "
            "output and save that; (3) decorate `backward` with `once_differentiable`",
        )


class _ReplayContext(FunctionCtx):
    """A context that only listens: what would `forward` save?"""

    def __init__(self, flags: tuple[bool, ...]) -> None:
        self.needs_input_grad = flags
        self.saved: tuple[Any, ...] = ()
        self.saved_data: dict[str, Any] = {}

    def save_for_backward(self, *tensors: Any) -> None:
        """Note `tensors`."""
        self.saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was noted."""
        return self.saved

    def get_saved_variables(self) -> tuple[Any, ...]:
        """What was noted, under its C++ name."""
        return self.saved


def _nudged(tensor: Tensor, ulps: int) -> Tensor:
    """`tensor` moved by about `ulps` units in the last place, signs and zeros kept."""
    if not is_differentiable(tensor):
        return tensor
    return tensor * (1 + ulps * torch.finfo(tensor.dtype).eps)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.allclose(a, b, rtol=64 * torch.finfo(a.dtype).eps, atol=1e-8, equal_nan=True)


# ---- the user's names of saved tensors ----


def saved_names(door: Door, slots: dict[str, int], user_saves: int | None) -> dict[int, str]:
    """The user's expression for each saved place, read from the source where it can be."""
    offset = user_saves or 0
    names = {offset + place: f"ctx.{name}" for name, place in slots.items()}
    cls = door.cls
    function = cls.setup_context if door.signature.has_setup else cls.forward
    for call in _save_calls(function):
        if not any(isinstance(arg, ast.Starred) for arg in call.args):
            names |= {place: ast.unparse(arg) for place, arg in enumerate(call.args)}
    return names


def _save_calls(function: Any) -> list[ast.Call]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return []
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [c for c in calls if getattr(c.func, "attr", "") == "save_for_backward"]
