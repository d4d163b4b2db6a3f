"""Run a program and its backward on fake tensors, once, and note everything about it.

`trace` gives the raw graph, with the placeholders still where they came up, in-place ops still in
place, and each node marked. `tidy` brings it into the form of `graph/parts.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.fake import Stage, is_dense, run_backward
from pullback.capture.marks import NodeMark, NodeMarks
from pullback.capture.modes import autocast_off
from pullback.capture.names import (
    argument_names,
    closure_names,
    identifier,
    late_bound,
    program_name,
)
from pullback.capture.offsets import READS
from pullback.capture.opaque import OpaqueCall
from pullback.capture.places import call_user
from pullback.capture.refuse import (
    require_backward_free,
    require_drawn_once,
    require_kept,
    require_mask,
    require_needs,
    require_no_graphs,
    require_own_generator_free,
    require_strided,
)
from pullback.capture.trees import Spec, flatten, is_tensor, map_leaves, tensor_leaves, unflatten
from pullback.capture.watch import FUNCTION, OP, WatchedCall, is_unit, versions_of, watched
from pullback.function.slots import no_torch_function, version_of
from pullback.graph.cost import is_random
from pullback.graph.parts import BACKWARD, FORWARD

ARGUMENT, CLOSURE, CONSTANT = "argument", "closure", "constant"
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(slots=True)
class TracedInput:
    """An input of the trace: the real tensor, and the fake ones that stand in for it."""

    name: str
    kind: str
    real: Tensor
    needs: bool
    free: bool
    leaf: Tensor  # what gradients are taken of
    given: Tensor  # what the program is given: the leaf, or a clone where the real one is no leaf
    node: fx.Node | None = None
    version: int = 0

    def is_closure(self, tensor: Tensor) -> bool:
        """Whether it stands for `tensor` from outside the program; an argument may be any other."""
        return self.real is tensor and self.kind != ARGUMENT


@dataclass(slots=True)
class TracedOutput:
    """One output of the trace: a leaf of what the program returned, or a changed input."""

    value: Any
    differentiable: bool = False
    used: bool = False
    changes: int | None = None
    node: fx.Node | None = None  # of its cotangent


@dataclass(slots=True)
class Traced:
    """What came of one run."""

    name: str
    closure_name: Callable[[Tensor], str]
    module: fx.GraphModule
    held: list[TracedInput]
    results: list[TracedOutput]
    returned: int  # how many of the results the program returned
    units: list[str]
    functions: list[type]  # the Functions among the units
    is_handwritten: bool
    reads_offsets: bool
    cuts_history: bool
    in_spec: Spec
    out_spec: Spec
    leaves: list[Any]


@dataclass
class Tracing:
    """One run under way."""

    program: Callable[..., Any]
    examples: tuple[Any, ...]
    stage: Stage
    opaque: Sequence[OpaqueCall] | None = None
    held: list[TracedInput] = field(default_factory=list)
    results: list[TracedOutput] = field(default_factory=list)
    units: list[str] = field(default_factory=list)
    functions: list[type] = field(default_factory=list)
    is_handwritten: bool = False
    reads_offsets: bool = False
    cuts_history: bool = False

    def __post_init__(self) -> None:
        self.name = program_name(self.program)
        self.marks = NodeMarks(lambda: self.stage.graph, self.stage.node_of)
        self.leaves, self.in_spec = flatten(self.examples)
        self._closure_names: dict[int, str] | None = None
        self.used: Sequence[bool] | None = None
        self.out_spec: Spec | None = None
        self._opaque = iter(self.opaque or ())
        self._opaque_classes = {call.cls for call in self.opaque or ()}

    def run(self, needs: Sequence[bool] | None, used: Sequence[bool] | None) -> Traced:
        """Trace the program; `needs` and `used` as in `capture`."""
        names = argument_names(self.program, self.examples)
        tensors = [(n, x) for n, x in zip(names, self.leaves, strict=True) if is_tensor(x)]
        flags = require_needs(self.name, tensors, needs)
        self.used = used
        for (name, tensor), need in zip(tensors, flags, strict=True):
            self._hold(name, ARGUMENT, tensor, need)
        module = self.stage.trace(self._joint, [held.leaf for held in self.held])
        placeholders = module.graph.find_nodes(op="placeholder")
        for held, node in zip(self.held[: len(tensors)], placeholders, strict=False):
            held.node = node
        assert self.out_spec is not None
        return Traced(
            self.name,
            self.closure_name,
            module,
            self.held,
            self.results,
            self.out_spec.num_leaves,
            self.units,
            self.functions,
            self.is_handwritten,
            self.reads_offsets,
            self.cuts_history,
            self.in_spec,
            self.out_spec,
            self.leaves,
        )

    # ---- inputs ----

    def _hold(self, name: str, kind: str, tensor: Tensor, needs: bool) -> TracedInput:
        require_strided(self.name, name, tensor)
        leaf = self.stage.stand_in(tensor).requires_grad_(needs)
        held = TracedInput(name, kind, tensor, needs, tensor.is_leaf, leaf, leaf)
        self.held.append(held)
        self.marks.taken |= {identifier(name), f"grad_{identifier(name)}"}
        return held

    def _give(self, held: TracedInput) -> Tensor:
        """What the program gets for an input.

        A leaf that needs a gradient cannot be changed in place. A tensor that is no leaf can, so
        the program gets one that is none either; `tidy` removes the clone. Where a clone would
        lie otherwise in its memory it gets a view, and a change in place is refused.
        """
        if held.needs and not held.free:
            is_alike = is_dense(held.leaf) and not held.leaf.storage_offset()
            held.given = held.leaf.clone() if is_alike else held.leaf.view_as(held.leaf)
            node = self.stage.node_of(held.given)
            assert node is not None
            node.meta["given"] = True
        held.version = version_of(held.given)
        return held.given

    def _ours(self, value: Any) -> Any:
        """`value`, or what stands in for it when it is a tensor from outside the program."""
        if not is_tensor(value) or not self.stage.is_foreign(value):
            return value
        for held in self.held:
            if held.is_closure(value):
                return held.given
        name = self.closure_name(value) or f"closure_{len(self.held)}"
        held = self._hold(name, CLOSURE, value, value.requires_grad)
        held.node = self.stage.add_placeholder(held.leaf)
        with torch.set_grad_enabled(self.marks.phase == FORWARD):
            return self._give(held)

    def closure_name(self, tensor: Tensor) -> str:
        """The user's name of a tensor from outside the program, or ""."""
        if self._closure_names is None:
            self._closure_names = closure_names(self.program)
        return self._closure_names.get(id(tensor), "")

    # ---- the run ----

    def _joint(self, *_: Tensor) -> list[Any]:
        with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
            with watched(self._listen):
                self._forward()
                gradients = self._backward()
        self.marks.mark_added(self.marks.now)
        return [*(r.value for r in self.results if is_traced(r.value)), *gradients]

    def _listen(self, call: WatchedCall) -> Any:
        if not self.stage.is_recording:
            return call.make(*call.args, **call.kwargs)
        marks, outer = self.marks, self.marks.now
        outermost = marks.phase == FORWARD and not call.inner
        with no_torch_function():
            marks.mark_added(outer)
            marks.read(call.frame)
            require_own_generator_free(self.name, call)
            if outermost:
                require_backward_free(self.name, call)
            unit = len(self.units) if outermost else outer.unit
            marks.now = mark = NodeMark(unit, call.place or outer.place)
            args, kwargs = self._replaced(call)
            touched = tensor_leaves((args, kwargs))
            before = versions_of(touched)
        try:
            result = self._made(call, args, kwargs)
        finally:
            added = marks.mark_added(mark)
            marks.now = outer
        with no_torch_function():
            if marks.phase == BACKWARD and any(is_random(node) for node in added):
                require_drawn_once(self.name, call)
            self.is_handwritten |= call.name == "register_hook"
            self.reads_offsets |= call.name in READS
            if marks.phase == FORWARD:
                self.cuts_history |= _cuts(call.name, touched, result)
            if outermost and is_unit(result, before, versions_of(touched)):
                self.units.append(call.name)
                self.functions += [call.owner] if call.kind == FUNCTION else []
                marks.own([*tensor_leaves(result), *touched], mark, is_op=call.kind == OP)
        return result

    def _made(self, call: WatchedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call gives; where a Function cannot be traced, `Untraceable` says which."""
        if call.kind != FUNCTION or call.inner or self.opaque is None:
            return call.make(*args, **kwargs)
        if call.owner in self._opaque_classes:
            return next(self._opaque).apply(args)
        try:
            return call.make(*args, **kwargs)
        except Exception as error:
            raise Untraceable(call.owner, error) from error

    def _untraceable(self, error: BaseException) -> type | None:
        """The Function in whose backward an error was raised, if it may be called untraced."""
        codes = {_backward_code(cls): cls for cls in self.functions}
        entry = error.__traceback__ if self.opaque is not None else None
        while entry is not None:
            if entry.tb_frame.f_code in codes:
                return codes[entry.tb_frame.f_code]
            entry = entry.tb_next
        return None

    def _replaced(self, call: WatchedCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What `call` is made with: tensors from outside the program replaced."""
        given = (call.args, call.kwargs)
        if any(self.stage.is_foreign(tensor) for tensor in tensor_leaves(given)):
            args, kwargs = map_leaves(self._ours, given)
            return args, kwargs
        return given

    def _forward(self) -> None:
        with no_torch_function():
            given = iter([self._give(held) for held in self.held])
        filled = [next(given) if is_tensor(leaf) else leaf for leaf in self.leaves]
        returned = call_user(late_bound(self.program), *unflatten(filled, self.in_spec))
        leaves, self.out_spec = flatten(returned)
        with no_torch_function():
            self.marks.read_again()
            self.results = [self._result(leaf) for leaf in leaves]
            self._add_changed()
        require_no_graphs(self.name, self.stage.graph)
        self.used = require_mask(self.name, sum(r.differentiable for r in self.results), self.used)

    def _result(self, leaf: Any) -> TracedOutput:
        if not is_tensor(leaf):
            require_kept(self.name, leaf)
            return TracedOutput(leaf)
        leaf = self._ours(leaf)
        return TracedOutput(leaf, differentiable=leaf.requires_grad)

    def _add_changed(self) -> None:
        """Make each input that was changed in place an output, if it is none yet."""
        for position, held in enumerate(self.held):
            if version_of(held.given) == held.version:
                continue
            found = next((r for r in self.results if r.value is held.given), None)
            if found is None:
                found = self._result(held.given)
                self.results.append(found)
            found.changes = position

    # ---- backward ----

    def _backward(self) -> list[Tensor | None]:
        with no_torch_function():
            outputs, cotangents = self._cotangents()
            self._lift_leaves(outputs)
            self.is_handwritten |= self.marks.has_functions(outputs)
        wanted = [held for held in self.held if held.needs]
        # A closure that reached PyTorch unwatched is in the history as itself.
        hidden = [held for held in wanted if held.kind == CLOSURE]
        inputs = [held.leaf for held in wanted] + [held.real for held in hidden]
        # Backward runs outside autocast, whatever is on around the capture: the AMP guide asks so.
        with autocast_off(), self.marks.followed(outputs):
            try:
                found = iter(call_user(run_backward, outputs, inputs, cotangents))
            except Exception as error:
                cls = self._untraceable(error)
                if cls is None:
                    raise
                raise Untraceable(cls, error) from error
        with no_torch_function(), torch.no_grad():
            self.marks.read_again()
            gradients = {id(held): next(found) for held in wanted}
            for held in hidden:
                gradients[id(held)] = _sum(gradients[id(held)], next(found))
            return [self._gradient(held, gradients.get(id(held))) for held in self._needing()]

    def _needing(self) -> list[TracedInput]:
        return [held for held in self.held if held.needs]

    def _gradient(self, held: TracedInput, gradient: Tensor | None) -> Tensor | None:
        if gradient is not None:
            self.marks.name(gradient, f"grad_{identifier(held.name)}")
        return gradient

    def _cotangents(self) -> tuple[list[Tensor], list[Tensor]]:
        outputs, cotangents = [], []
        mask = iter(self.used or ())
        for result in self.results:
            if not result.differentiable:
                continue
            result.used = next(mask)
            if result.used:
                cotangent = self.stage.like(result.value)
                result.node = self.stage.add_placeholder(cotangent)
                outputs.append(result.value)
                cotangents.append(cotangent)
        return outputs, cotangents

    def _lift_leaves(self, outputs: Sequence[Tensor]) -> None:
        """Make inputs of the real tensors that the history of `outputs` ends in."""
        for leaf in self.marks.leaves(outputs):
            self._ours(leaf)


class Untraceable(Exception):
    """A Function cannot run on tensors without values."""

    def __init__(self, cls: Any, error: Exception) -> None:
        super().__init__(str(error))
        self.cls, self.error = cls, error


def _backward_code(cls: Any) -> Any:
    backward = inspect.unwrap(getattr(cls, "backward", None) or cls.vjp)
    return getattr(backward, "__code__", None)


def is_traced(value: Any) -> bool:
    """Whether a value of the program's has a node of its own."""
    return isinstance(value, (Tensor, *_SYMBOLIC))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


_NEW = ("zeros_like", "ones_like", "empty_like", "full_like", "new_", "rand")
"""How calls begin that take no number from a tensor but its kind."""


def _cuts(name: str, given: Sequence[Tensor], result: Any) -> bool:
    """Whether a call took numbers that have a history, and gave some without: `detach`, `no_grad`.

    The ops of a graph do not show it, so to differentiate them again is another derivative.
    """
    if name.startswith(_NEW) or not any(tensor.requires_grad for tensor in given):
        return False
    return any(
        (tensor.is_floating_point() or tensor.is_complex()) and not tensor.requires_grad
        for tensor in tensor_leaves(result)
    )
