"""Functions that cannot be traced, as ops of a graph: their own forward and backward, as they are.

A Function that reads values, calls NumPy, or hands memory to a kernel (Triton, CUDA, C++) cannot
run on tensors without values. In a graph it is two ops: one calls the Function, the other its
backward. What it saved goes from one to the other behind a *handle*, an empty tensor that carries
the node that PyTorch made for the call. Inputs and outputs among what it saved are not held by it:
the second op is given them anew, since compiled code may have written over the first ones.

What the ops give is known from a run on real tensors (`probe`), and so it holds for their sizes
alone. That run also sees what an op may not do: change an input, return one, draw random numbers.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from pullback.capture.layouts import Layout
from pullback.capture.patch import watching
from pullback.capture.trees import Spec, flatten, tensor_leaves, unflatten
from pullback.errors import CaptureError
from pullback.function.isolation import TorchState
from pullback.function.slots import storage_key

_FIX = "call it outside of the composition, or let it work on a clone"
_numbers = itertools.count()
_library = torch.library.Library("pullback_opaque", "FRAGMENT")
_known: dict[str, OpaqueCall] = {}


@dataclass(frozen=True, slots=True)
class _Slot:
    """The place of a tensor among the arguments of a call."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class OpaqueCall:
    """One call of a Function that is not traced: what goes in, and what comes out.

    `leaves` are its arguments, a `_Slot` for each tensor; `needs` says which tensors have a
    gradient, `live` which outputs; `pulled` are the places of inputs whose gradient is not None,
    and `gradients` what those are. `overwritten` are the places, among inputs, outputs and
    cotangents, of what its backward writes over.
    """

    cls: Any
    leaves: tuple[Any, ...]
    spec: Spec
    inputs: tuple[Layout, ...]
    needs: tuple[bool, ...]
    outputs: tuple[Layout, ...]
    out_leaves: tuple[Any, ...]
    out_spec: Spec
    live: tuple[int, ...]
    pulled: tuple[int, ...] = ()
    gradients: tuple[Layout, ...] = ()
    overwritten: tuple[int, ...] = ()
    name: str = ""

    def args(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The arguments, with these tensors in them."""
        leaves = [tensors[x.number] if isinstance(x, _Slot) else x for x in self.leaves]
        return tuple(unflatten(leaves, self.spec))

    def given(self, outputs: Sequence[Tensor]) -> Any:
        """What the Function returns, with these tensors in it."""
        leaves = [outputs[x.number] if isinstance(x, _Slot) else x for x in self.out_leaves]
        return unflatten(leaves, self.out_spec)

    @property
    def forward(self) -> Any:
        """The op that calls the Function: its outputs, and the handle."""
        return getattr(torch.ops.pullback_opaque, f"{self.name}_forward").default

    @property
    def backward(self) -> Any:
        """The op that calls its backward, with the handle, inputs, outputs and cotangents."""
        return getattr(torch.ops.pullback_opaque, f"{self.name}_backward").default

    def apply(self, args: Sequence[Any]) -> Any:
        """Call it in a trace."""
        tensors = tensor_leaves(tuple(args))
        found = tuple(_layout(x) for x in tensors)
        if found != self.inputs or tuple(x.requires_grad for x in tensors) != self.needs:
            raise self.differs("other tensors when it is captured than when it runs")
        made: Any = _Traced.apply(self, *tensors)  # type: ignore[no-untyped-call]
        return self.given(made if isinstance(made, tuple) else (made,))

    def differs(self, got: str) -> CaptureError:
        """The error for a call that is not like the one that was seen."""
        return _refused(self.cls, "must give tensors of one shape and layout", got)


class _Traced(TorchFunction):
    """The two ops as a Function, for a trace to see."""

    @staticmethod
    def forward(ctx: Any, call: OpaqueCall, *tensors: Tensor) -> Any:
        *outputs, handle = call.forward(*tensors)
        ctx.call, ctx.count = call, len(tensors)
        ctx.save_for_backward(handle, *tensors, *outputs)
        ctx.set_materialize_grads(False)
        silent = [one for place, one in enumerate(outputs) if place not in call.live]
        ctx.mark_non_differentiable(*silent)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        call: OpaqueCall = ctx.call
        given = [cotangents[place] for place in call.live]
        if not call.pulled or all(one is None for one in given):
            return (None,) * (1 + ctx.count)
        made = call.backward(*ctx.saved_tensors, *given)
        found = dict(zip(call.pulled, made if len(call.pulled) > 1 else (made,), strict=True))
        return (None, *(found.get(place) for place in range(ctx.count)))


# ---- running ----


class _Enter(TorchFunction):
    """An alias of a tensor, at the beginning of a history that does not hold it."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return None, None


@dataclass(eq=False)
class _Ran:
    """One call that was made: where its history begins and ends, and the tensors that it needs.

    `saved` are what it saved, each a tensor or how it lies in an input or output; those are given
    while a backward runs (`now`).
    """

    starts: list[Any] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    saved: list[Any] = field(default_factory=list)
    now: Sequence[Tensor] = ()
    lock: Any = field(default_factory=threading.RLock)

    def pack(self, tensor: Tensor) -> int:
        self.saved.append(tensor.detach())
        return len(self.saved) - 1

    def unpack(self, number: int) -> Tensor:
        held: Tensor | tuple[int, Any, Any, int] = self.saved[number]
        if isinstance(held, Tensor):
            return held
        place, shape, stride, offset = held
        base = self.now[place]
        return base.as_strided(shape, stride, base.storage_offset() + offset)

    def let_go(self, tensors: Sequence[Tensor]) -> None:
        """Hold no inputs and outputs, but know how what was saved lies in them."""
        bases = {_memory(x): place for place, x in reversed(list(enumerate(tensors)))}
        for number, held in enumerate(self.saved):
            place = bases.get(_memory(held))
            if place is not None and held.dtype is tensors[place].dtype:
                offset = held.storage_offset() - tensors[place].storage_offset()
                self.saved[number] = place, held.shape, held.stride(), offset


def _layout(tensor: Tensor) -> Layout:
    return Layout.of(tensor, needs=False)


def _memory(tensor: Tensor) -> int:
    return storage_key(tensor)


def _run(call: OpaqueCall, tensors: Sequence[Tensor]) -> tuple[list[Tensor], _Ran, Any]:
    """Call the Function: its outputs, with their history, and what its backward needs."""
    ran = _Ran()
    with torch.enable_grad():
        token = torch.zeros((), requires_grad=True)
        entered = [
            _Enter.apply(token, x) if need else x.detach()  # type: ignore[no-untyped-call]
            for x, need in zip(tensors, call.needs, strict=True)
        ]
        with saved_tensors_hooks(ran.pack, ran.unpack):
            returned = call.cls.apply(*call.args(entered))
        outputs = tensor_leaves(returned)
        needing = zip(entered, call.needs, strict=True)
        ran.starts = [get_gradient_edge(x) for x, need in needing if need]
    return outputs, ran, returned


def _forward_of(call: OpaqueCall) -> Callable[..., Any]:
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs, ran, _ = _run(call, tensors)
        if tuple(map(_layout, outputs)) != call.outputs:
            raise call.differs(f"outputs of shapes {[list(x.shape) for x in outputs]}")
        if tuple(i for i, x in enumerate(outputs) if x.requires_grad) != call.live:
            raise call.differs("other differentiable outputs than before")
        ran.ends = [get_gradient_edge(outputs[place]) for place in call.live]
        bare = [x.detach() for x in outputs]
        _require_apart(call.cls, tensors, bare)
        _require_unheld(call.cls, ran, [*tensors, *bare])
        ran.let_go([*tensors, *bare])
        handle: Any = torch.empty(0, device=bare[0].device)
        handle._pb_opaque = ran
        return (*bare, handle)

    return forward


def _backward_of(call: OpaqueCall) -> Callable[..., Any]:
    def backward(handle: Tensor, *rest: Any) -> Any:
        ran: _Ran | None = getattr(handle, "_pb_opaque", None)
        if ran is None:
            raise CaptureError(
                f"`{call.cls.__name__}` must get back what it saved as it was",
                got="a copy of it, as hooks on saved tensors make",
                fix=_FIX,
            )
        row = [
            x.clone() if place in call.overwritten and x is not None else x
            for place, x in enumerate(rest)
        ]
        count = len(call.inputs) + len(call.outputs)
        pairs = [(e, c) for e, c in zip(ran.ends, row[count:], strict=True) if c is not None]
        with ran.lock:
            ran.now = row[:count]
            try:
                found = torch.autograd.grad(
                    [edge for edge, _ in pairs],
                    ran.starts,
                    [cotangent for _, cotangent in pairs],
                    retain_graph=True,
                    allow_unused=True,
                )
            finally:
                ran.now = ()
        needing = [place for place, need in enumerate(call.needs) if need]
        by_place = dict(zip(needing, found, strict=True))
        for place, gradient in by_place.items():
            if gradient is not None and place not in call.pulled:
                raise call.differs("a gradient where there was none before")
        taken = {_memory(x) for x in rest if x is not None}
        made = []
        for place, kind in zip(call.pulled, call.gradients, strict=True):
            made.append(_laid(by_place[place], kind, taken))
            taken.add(_memory(made[-1]))
        return made[0] if len(made) == 1 else tuple(made)

    return backward


def _laid(gradient: Tensor | None, kind: Layout, taken: set[int]) -> Tensor:
    """A gradient in memory of its own, laid out as it is known to be."""
    if gradient is None:
        return kind.empty().zero_()
    gradient = gradient.detach()
    if _layout(gradient) == kind and _memory(gradient) not in taken:
        return gradient
    return kind.empty().copy_(gradient)


# ---- ops ----


def _registered(call: OpaqueCall) -> OpaqueCall:
    """The call with a name, under which its two ops are known to PyTorch.

    The name says all that the call depends on, so that code in a cache finds what it was made for.
    """
    facts = [call.inputs, call.needs, call.outputs, call.live, call.pulled, call.gradients]
    plain = [x for x in (*call.leaves, *call.out_leaves) if not isinstance(x, _Slot)]
    is_plain = all(isinstance(x, (type(None), bool, int, float, str, torch.dtype)) for x in plain)
    is_named = is_plain and "<" not in call.cls.__qualname__
    unique = "" if is_named else f"{next(_numbers)} {os.getpid()} {time.time_ns()}"
    text = f"{call.cls.__module__}.{call.cls.__qualname__} {call.leaves} {facts} {unique}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    letters = "".join(c if c.isascii() and c.isalnum() else "_" for c in call.cls.__name__)
    fields = {n: getattr(call, n) for n in OpaqueCall.__dataclass_fields__}
    named = OpaqueCall(**(fields | {"name": f"{letters}_{digest}"}))
    known = _known.get(named.name)
    if known is not None and known.cls is call.cls:
        return known
    if known is not None:  # a class of the same name, made anew
        named = OpaqueCall(**(fields | {"name": f"{letters}_{digest}_{next(_numbers)}"}))
    _known[named.name] = named
    _define(named)
    return named


def _define(call: OpaqueCall) -> None:
    inputs = ", ".join(f"Tensor x{i}" for i in range(len(call.inputs)))
    outputs = ", ".join(["Tensor"] * (len(call.outputs) + 1))
    name = f"{call.name}_forward"
    _library.define(f"{name}({inputs}) -> ({outputs})")
    _library.impl(name, _forward_of(call), "CompositeExplicitAutograd")
    kinds = call.outputs

    def fake_forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        return (*(k.empty() for k in kinds), torch.empty(0, device=kinds[0].device))

    torch.library.register_fake(f"pullback_opaque::{name}", fake_forward, lib=_library)
    if not call.pulled:
        return
    saved = [f"Tensor y{i}" for i in range(len(call.outputs))]
    given = [f"Tensor? g{i}" for i in call.live]
    parameters = ", ".join(["Tensor handle", *([inputs] if inputs else []), *saved, *given])
    gradients = ", ".join(["Tensor"] * len(call.gradients))
    name = f"{call.name}_backward"
    _library.define(f"{name}({parameters}) -> ({gradients})")
    _library.impl(name, _backward_of(call), "CompositeExplicitAutograd")

    def fake_backward(*rest: Any) -> Any:
        made = tuple(kind.empty() for kind in call.gradients)
        return made[0] if len(made) == 1 else made

    torch.library.register_fake(f"pullback_opaque::{name}", fake_backward, lib=_library)


# ---- what a call is, seen on real tensors ----


def probe(cls: Any, args: Sequence[Any]) -> OpaqueCall:
    """What a call of the Function `cls` takes and gives, from calls on copies of real tensors.

    Raises `CaptureError` where it does what an op may not.
    """
    leaves, spec = flatten(tuple(args))
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    numbers = itertools.count()
    slots = tuple(_Slot(next(numbers)) if isinstance(x, Tensor) else x for x in leaves)
    needs = tuple(x.requires_grad for x in tensors)
    kinds = tuple(map(_layout, tensors))
    first = OpaqueCall(cls, slots, spec, kinds, needs, (), (), spec, ())
    given = [Layout.copy_of(x.detach()) for x in tensors]
    before = [x.clone() for x in given]
    state = TorchState()
    outputs, ran, returned = _run(first, given)
    _require(cls, outputs, "must give tensors", "none")
    if not state.is_now():
        raise _refused(cls, "must draw no random numbers", "numbers drawn by its `forward`")
    live = tuple(place for place, x in enumerate(outputs) if x.requires_grad)
    ran.ends = [get_gradient_edge(outputs[place]) for place in live]
    bare = [x.detach() for x in outputs]
    _require_unchanged(cls, given, before)
    _require_apart(cls, given, bare)
    _require_unheld(cls, ran, [*given, *bare])
    out_leaves, out_spec = flatten(returned)
    numbers = itertools.count()
    out_slots = tuple(_Slot(next(numbers)) if isinstance(x, Tensor) else x for x in out_leaves)
    found = _pulled(ran, given, bare, live, needs) if live else {}
    made = tuple(map(_layout, bare))
    return _registered(
        OpaqueCall(cls, slots, spec, kinds, needs, made, out_slots, out_spec, live, **found)
    )


def _pulled(
    ran: _Ran,
    given: Sequence[Tensor],
    outputs: Sequence[Tensor],
    live: Sequence[int],
    needs: Sequence[bool],
) -> dict[str, Any]:
    """Which gradients a backward gives, and what it writes over."""
    ran.let_go([*given, *outputs])
    cotangents = [torch.ones_like(outputs[place]) for place in live]
    row = [*given, *outputs, *cotangents]
    before = [x.clone() for x in row]
    ran.now = [*given, *outputs]
    found = torch.autograd.grad(
        ran.ends, ran.starts, cotangents, retain_graph=True, allow_unused=True
    )
    ran.now = ()
    changed = (i for i, (a, b) in enumerate(zip(row, before, strict=True)) if not _same(a, b))
    needing = [place for place, need in enumerate(needs) if need]
    pairs = [(p, g) for p, g in zip(needing, found, strict=True) if g is not None]
    return {
        "pulled": tuple(place for place, _ in pairs),
        "gradients": tuple(_dense(_layout(gradient)) for _, gradient in pairs),
        "overwritten": tuple(changed),
    }


def _dense(kind: Layout) -> Layout:
    """The same, in memory of its own: an expanded gradient is written out."""
    if 0 not in kind.stride:
        return kind
    strides = torch.empty(kind.shape, device="meta").stride()
    return replace(kind, stride=strides)


def _same(one: Tensor, two: Tensor) -> bool:
    return bool(((one == two) | ((one != one) & (two != two))).all())


def _refused(cls: Any, rule: str, got: str) -> CaptureError:
    return CaptureError(f"`{cls.__name__}` {rule} to be a part of a node", got=got, fix=_FIX)


def _require(cls: Any, holds: Any, rule: str, got: str) -> None:
    if not holds:
        raise _refused(cls, rule, got)


def _require_unchanged(cls: Any, given: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    for place, (now, then) in enumerate(zip(given, before, strict=True)):
        got = f"tensor {place} of its arguments, changed by its `forward`"
        _require(cls, _same(now, then), "must leave its arguments as they are", got)


def _require_apart(cls: Any, given: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    memory = [_memory(x) for x in (*given, *outputs)]
    first = len(set(memory[: len(given)]))
    is_apart = len(set(memory)) == first + len(outputs)
    _require(cls, is_apart, "must return tensors of their own", "memory of an argument, or twice")


def _require_unheld(cls: Any, ran: _Ran, tensors: Sequence[Tensor]) -> None:
    """Raise if the context holds an argument or output by another way than `save_for_backward`."""
    memory = {_memory(x) for x in tensors}
    for edge in ran.ends:
        for name, held in vars(edge.node).items() if hasattr(edge.node, "__dict__") else ():
            taken = any(_memory(x) in memory for x in tensor_leaves(held))
            rule = "must keep its arguments by `ctx.save_for_backward`"
            _require(cls, not taken, rule, f"`ctx.{name}`")


def probed(program: Callable[[], Any], classes: Sequence[Any]) -> list[OpaqueCall]:
    """The calls of some Functions that a program makes when it is run, in their order."""
    found: list[OpaqueCall] = []

    def handle(cls: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if cls in classes:
            found.append(probe(cls, args))
        return call(*args, **kwargs)

    with watching(handle):
        program()
    return found
