"""One pass through a model, watched call by call, forward and backward.

Noted are: where a value that is not finite first comes from, where gradients are cut, and how many
bytes each custom Function keeps for backward. Places are paths in the model and lines of the
user's files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pullback.capture.places import frames_above
from pullback.capture.watch import CUSTOM, FUNCTION, WatchedCall, watched
from pullback.check.models.program import ModelProgram
from pullback.check.recordings.call import function_name
from pullback.check.recordings.module_paths import ModulePaths
from pullback.check.target.registration import near
from pullback.check.watching.nodes import nodes_from
from pullback.judge.example import can_differ, tensors_in

TAG = "pullback"


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """A call of a program: its name, where in the model it is made, and in which line."""

    name: str
    path: str
    place: str
    is_function: bool = False

    def __str__(self) -> str:
        where = f" in `{self.path}`" if self.path else ""
        return f"`{self.name}`{where}" + (f" ({self.place})" if self.place else "")


@dataclass(slots=True)
class ObservedPass:
    """What one pass showed."""

    forward_origin: CallOrigin | None = None
    backward_origin: CallOrigin | None = None
    has_nan_output: bool = False
    broken: tuple[str, ...] = ()  # names whose gradients are not finite
    cuts: dict[str, list[CallOrigin]] = field(default_factory=dict)  # by name of parameter or input
    missing: tuple[str, ...] = ()  # names without a gradient
    saved: dict[str, int] = field(default_factory=dict)  # bytes that each Function keeps, by name
    total: int = 0  # bytes that the whole model keeps


class Observer:
    """Watches one pass of a model at its example."""

    def __init__(self, program: ModelProgram) -> None:
        self.program = program
        self.observed = ObservedPass()
        self._paths = ModulePaths()
        self._leaves = program.leaves()
        self._owner = ""
        self._saved: dict[str, dict[int, int]] = {}
        self._ids: dict[Any, str] = {}
        self._held: set[int] = set()

    def observe(self) -> ObservedPass:
        """Run forward and backward; errors of the model's own come through."""
        leaves, seen = self._leaves, self.observed
        buffers = [*self.program.module.parameters(), *self.program.module.buffers()]
        around = [*leaves.values(), *buffers, *tensors_in(self.program.example.args)]
        self._held = {_memory(t) for t in around}
        self._ids = {torch.autograd.graph.get_gradient_edge(t).node: n for n, t in leaves.items()}
        with (
            watched(self._listen),
            torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t),
        ):
            outputs = self.program(leaves)
        seen.has_nan_output = any(bool(o.isnan().any()) for o in outputs if can_differ(o))
        for node in _nodes([o for o in outputs if can_differ(o) and o.requires_grad]):
            node.register_hook(self._backward_hook(node))
        grads = self.program.pulled(outputs, leaves)
        seen.missing = tuple(name for name, grad in grads.items() if grad is None)
        seen.broken = tuple(n for n, g in grads.items() if g is not None and not _is_finite(g))
        seen.saved = {name: sum(one.values()) for name, one in self._saved.items() if name}
        every = {key: size for one in self._saved.values() for key, size in one.items()}
        seen.total = sum(every.values())
        return seen

    def _listen(self, call: WatchedCall) -> Any:
        if call.inner:
            return call.make(*call.args, **call.kwargs)
        is_custom = call.kind in (FUNCTION, CUSTOM)
        before, self._owner = self._owner, function_name(call.owner) if is_custom else ""
        try:
            result = call.make(*call.args, **call.kwargs)
        finally:
            self._owner = before
        given = tensors_in([*call.args, *call.kwargs.values()])
        made = [t for t in tensors_in(result) if can_differ(t)]
        if made:
            self._note(call, given, made)
        return result

    def _note(self, call: WatchedCall, given: list[Tensor], made: list[Tensor]) -> None:
        seen = self.observed
        tracked = [t for t in given if t.requires_grad]
        is_broken = seen.forward_origin is None and any(_has_nan(t) for t in made)
        lost = [t for t in made if not t.requires_grad] if tracked else []
        nodes: list[Any] = [t.grad_fn for t in made if t.grad_fn is not None]
        fresh = [node for node in nodes if TAG not in node.metadata]
        if not (is_broken or lost or fresh):
            return
        path, place = self._paths.here(call.frame), _line_of_user(call)
        origin = CallOrigin(call.name, path, place, call.kind == FUNCTION)
        for node in fresh:
            node.metadata[TAG] = origin
        if is_broken and not any(_has_nan(t) for t in given if can_differ(t)):
            seen.forward_origin = origin
        if len(lost) == len(made):
            for name in {self._ids[node] for node in _nodes(tracked) if node in self._ids}:
                known = seen.cuts.setdefault(name, [])
                if origin not in known:
                    known.append(origin)

    def _pack(self, tensor: Tensor) -> Tensor:
        key = _memory(tensor)
        if key and key not in self._held:
            self._saved.setdefault(self._owner, {})[key] = tensor.untyped_storage().nbytes()
        return tensor

    def _backward_hook(self, node: Any) -> Any:
        """A hook that notes the first node which makes numbers that are not finite."""

        def hook(made: tuple[Tensor | None, ...], given: tuple[Tensor | None, ...]) -> None:
            seen = self.observed
            if seen.backward_origin is not None or all(map(_is_finite, made)):
                return
            if all(map(_is_finite, given)):
                name = node.name().removesuffix("Backward0").removesuffix("Backward")
                seen.backward_origin = node.metadata.get(TAG) or CallOrigin(name, "", "")

        return hook


def _line_of_user(call: WatchedCall) -> str:
    for frame in frames_above(call.frame):
        return f"{near(frame.f_code.co_filename)}:{frame.f_lineno}"
    return ""


def _memory(tensor: Tensor) -> int:
    """What tells the memory of a tensor from others; 0 where it has none of its own."""
    if tensor.layout != torch.strided or type(tensor) not in (Tensor, torch.nn.Parameter):
        return 0
    return tensor.untyped_storage().data_ptr()


def _is_finite(tensor: Tensor | None) -> bool:
    if tensor is None or not can_differ(tensor):
        return True
    values = tensor.to_dense() if tensor.layout != torch.strided else tensor
    return bool(values.isfinite().all())


def _has_nan(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and bool(tensor.isnan().any())


def _nodes(tensors: Sequence[Tensor]) -> Iterator[Any]:
    """The nodes of a graph; each without an origin of its own takes that of who uses it."""
    edges = [t.grad_fn or torch.autograd.graph.get_gradient_edge(t).node for t in tensors]
    for node in nodes_from(edges):
        yield node
        for following, _ in node.next_functions if TAG in node.metadata else ():
            if following is not None:
                following.metadata.setdefault(TAG, node.metadata[TAG])
