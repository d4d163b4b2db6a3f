"""Capture: a program, with its backward, as one joint graph of aten ops.

The program runs once on fake tensors, with symbols for their sizes, and so does its backward: the
engine itself calls each hand-written backward, which is thereby taken over as it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.capture.fake import Stage, apart, joined_clauses
from pullback.capture.modes import autocast_now, one_at_a_time
from pullback.capture.offsets import counts_from_memory
from pullback.capture.opaque import OpaqueCall, probed
from pullback.capture.refuse import may_be_of_sizes, refusing, require_memory_apart
from pullback.capture.tidy import tidy
from pullback.capture.tracing import (
    ARGUMENT,
    CLOSURE,
    Traced,
    TracedInput,
    TracedOutput,
    Tracing,
    Untraceable,
    is_traced,
)
from pullback.capture.trees import Spec, flatten, literal_of, unflatten
from pullback.function.isolation import isolated
from pullback.function.modes import uncompiled
from pullback.graph.parts import JointGraph


@dataclass(frozen=True, slots=True)
class CaptureInput:
    """One input of a joint graph.

    `kind` is "argument" (then `position` counts the tensors among the arguments), "closure" (a
    tensor from outside the program: `tensor`) or "constant" (a tensor that the program makes from
    numbers: `tensor`). `needs` says whether it needs a gradient, and one can reach it; `free`,
    whether it is a leaf, which is alive anyway and costs nothing to save. `offset` says where it
    must begin in its memory, None if the program does not see that.
    """

    name: str
    kind: str
    position: int | None
    tensor: Tensor | None
    needs: bool
    free: bool
    offset: int | None = None

    @property
    def is_given(self) -> bool:
        """Whether it is a parameter of what is written: a constant is a part of that."""
        return self.kind != "constant"


@dataclass(frozen=True, slots=True)
class CaptureOutput:
    """One leaf of what the program returns, or an input that it changes in place.

    `kind` is "tensor", "number" (a symbolic size) or "constant" (`value`, which is no part of the
    graph). `index` is its place among the outputs of the graph. A differentiable output has a
    cotangent if it is `used`. `changes` is the place of the input whose new value it is.
    `returned` is False for a changed input that the program does not return.
    """

    kind: str
    index: int | None
    value: Any
    differentiable: bool
    used: bool
    changes: int | None
    returned: bool

    @property
    def is_written(self) -> bool:
        """Whether a text can return it: all but constants that Python cannot write."""
        return self.returned and (self.index is not None or literal_of(self.value) is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """A program as one joint graph, with all that is needed to call it like the program.

    Guarantee: for every row of tensors that it `serves`, the graph computes what the program
    computes: outputs, gradients, which gradients are `None`, and changes of inputs. Random ops draw
    the same numbers from the same state. A cotangent is given with the strides of its placeholder.

    `leaves` are those of the arguments, a `CaptureInput` in the place of each tensor. `units` are
    the names of the units, whose numbers the nodes carry, and `functions` the classes of those that
    are Functions. `is_handwritten` says whether a part of its backward is hand-written, which then
    need not be linear in the cotangents. `sees_offsets` says whether the graph holds only for
    arguments that begin where those did in their memory, and `cuts_history` whether the program
    took numbers out of their history (`detach`), which the graph does not show. `local_names` gives
    the user's name for what a node computes, by the name of the node. `conditions` is what was
    assumed of sizes and strides, `clauses` the same one by one. `autocast` and `default_dtype` are
    those that it was captured under. `opaque` names the Functions in it that were not traced.
    """

    name: str
    joint: JointGraph
    inputs: tuple[CaptureInput, ...]
    outputs: tuple[CaptureOutput, ...]
    in_spec: Spec
    out_spec: Spec
    leaves: tuple[Any, ...]
    units: tuple[str, ...]
    functions: tuple[type, ...]
    is_handwritten: bool
    local_names: dict[str, str]
    conditions: str
    stage: Stage
    sees_offsets: bool = False
    cuts_history: bool = False
    clauses: tuple[str, ...] = ()
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    default_dtype: torch.dtype = torch.float32
    opaque: tuple[str, ...] = ()

    @property
    def mutated(self) -> tuple[tuple[int, int], ...]:
        """Each input that is changed in place, with the place of its new value in the outputs."""
        changed = [o for o in self.outputs if o.changes is not None]
        return tuple((o.changes, o.index) for o in changed)  # type: ignore[misc]

    @property
    def argument_count(self) -> int:
        """How many of the inputs are arguments, which come first."""
        return sum(one.kind == ARGUMENT for one in self.inputs)

    @property
    def closures(self) -> tuple[CaptureInput, ...]:
        """The inputs from outside the program."""
        return tuple(one for one in self.inputs if one.kind == CLOSURE)

    def fill(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The arguments that the program is called with, for these tensors in them."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, CaptureInput) else leaf for leaf in self.leaves]
        return tuple(unflatten(leaves, self.in_spec))

    def give(self, values: Sequence[Any]) -> Any:
        """What the program returns, for these values of the outputs of the graph."""
        returned = [output for output in self.outputs if output.returned]
        leaves = [o.value if o.index is None else values[o.index] for o in returned]
        return unflatten(leaves, self.out_spec)

    def linked(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """These tensors as arguments of a node: those that no gradient reaches without history."""
        return [
            tensor if one.needs or not tensor.requires_grad else _without_history(tensor)
            for tensor, one in zip(tensors, self.inputs, strict=False)
        ]

    def row(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What the placeholders of the inputs are given, for these tensors as arguments."""
        held = [i.tensor for i in self.inputs if i.tensor is not None]
        return [*tensors, *held]

    def serves(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the graph is right for these tensors as arguments: dtypes, devices and sizes."""
        row = self.row(tensors)
        values = [node.meta["val"] for node in self.joint.inputs]
        if len(row) != len(values):
            return False
        same = (
            a.dtype is b.dtype and a.device == b.device and a.dim() == b.dim()
            for a, b in zip(row, values, strict=True)
        )
        return all(same) and self.begins_like(tensors) and self.stage.meets(self.conditions, row)

    def begins_like(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these tensors begin in their memory where the graph expects it, if it does."""
        if not self.sees_offsets:
            return True
        return all(
            one.offset in (None, tensor.storage_offset())
            for tensor, one in zip(tensors, self.inputs, strict=False)
        )


def capture(
    program: Callable[..., Any],
    examples: Sequence[Any],
    *,
    needs: Sequence[bool] | None = None,
    used: Sequence[bool] | None = None,
    dynamic: bool = True,
    opaque: bool = False,
) -> Capture:
    """Capture `program` as it runs on `examples`.

    Arguments:
        program: any callable on tensors: a function, a module, a Function's `apply`.
        examples: its positional arguments; tensors may be inside tuples, lists and dicts. What is
            no tensor is a constant of the capture.
        needs: for each tensor in `examples`, whether it needs a gradient; by default, whether it
            requires grad.
        used: for each differentiable output, whether it has a cotangent; by default all have.
        dynamic: whether sizes are symbols, so that one capture serves many shapes; it serves one
            where a call takes plain numbers alone.
        opaque: whether Functions that cannot be traced become ops of the graph (`opaque.py`), which
            then serves the sizes of the examples alone.

    Raises `CaptureError` for what cannot be captured.
    """
    tracings: list[Tracing] = []

    def place() -> str:
        return tracings[-1].marks.now.place if tracings else ""

    calls: list[OpaqueCall] = []

    def trace(stage: Stage) -> tuple[Traced, JointGraph]:
        tracings.append(Tracing(program, tuple(examples), stage, calls if opaque else None))
        traced = tracings[-1].run(needs, used)
        return traced, tidy(stage, traced)

    with one_at_a_time(), _alone(program, place):
        stage = Stage(dynamic=dynamic)
        classes: list[Any] = []
        while True:
            try:
                traced, joint = trace(stage)
                break
            except Untraceable as found:
                if found.cls in classes:
                    raise found.error from None
                classes.append(found.cls)
                calls[:] = _opaque_calls(program, examples, needs, classes)
                dynamic, stage = False, Stage(dynamic=False)
            except Exception as error:
                if not dynamic or not may_be_of_sizes(error):
                    raise
                dynamic, stage = False, Stage(dynamic=False)
        sees_offsets = traced.reads_offsets or counts_from_memory(joint)
        if sees_offsets and any(each.real.storage_offset() for each in traced.held):
            stage = Stage(dynamic=dynamic, keeps_offsets=True)
            traced, joint = trace(stage)
        _drop_idle(traced, joint)
        held = [(each.name, each.real) for each in traced.held]
        changed = [held[r.changes] for r in traced.results if r.changes is not None]
        require_memory_apart(traced.name, changed, held)
        names = tuple(cls.__name__ for cls in classes)
        return _capture(stage, traced, joint, sees_offsets=sees_offsets, opaque=names)


def _opaque_calls(
    program: Callable[..., Any],
    examples: Sequence[Any],
    needs: Sequence[bool] | None,
    classes: Sequence[Any],
) -> list[OpaqueCall]:
    """The calls of Functions that cannot be traced, by running the program on copies."""
    leaves, spec = flatten(tuple(examples))
    flags = iter(needs or [leaf.requires_grad for leaf in leaves if isinstance(leaf, Tensor)])
    copies = [
        leaf.detach().clone().requires_grad_(next(flags)) if isinstance(leaf, Tensor) else leaf
        for leaf in leaves
    ]
    with isolated(examples, 0), torch.enable_grad():
        return probed(lambda: program(*unflatten(copies, spec)), classes)


@contextmanager
def _alone(program: Callable[..., Any], place: Callable[[], str]) -> Iterator[None]:
    """Out of sight of all modes around, nothing compiled; what stops a capture is worded."""
    with apart(), uncompiled(), refusing(program, place), torch.inference_mode(False):
        yield


def _without_history(tensor: Tensor) -> Tensor:
    """An alias that no gradient reaches, and that knows the tensor which the caller may hold."""
    alias: Any = tensor.detach()
    alias._pb_source = tensor
    return alias  # type: ignore[no-any-return]


def source_of(tensor: Tensor) -> Tensor:
    """The tensor that the caller gave, for one that a node was given."""
    return getattr(tensor, "_pb_source", tensor)


def _drop_idle(traced: Traced, joint: JointGraph) -> None:
    """Let an argument that no gradient reaches be one that needs none.

    A node would send it nothing, and PyTorch calls the hooks of a tensor with that. A hand-written
    backward that gives `None` may still be differentiated with respect to the argument.
    """
    is_whole = all(result.used for result in traced.results if result.differentiable)
    if traced.is_handwritten or not is_whole:
        return
    gradients = iter(joint.gradients)
    left = []
    for held in traced.held:
        gradient = next(gradients) if held.needs else None
        if held.needs and gradient is None and held.kind == ARGUMENT:
            held.needs = False
        elif held.needs:
            left.append(gradient)
    joint.graph.output_node().args = ((*joint.outputs, *left),)


def _capture(
    stage: Stage,
    traced: Traced,
    joint: JointGraph,
    *,
    sees_offsets: bool,
    opaque: tuple[str, ...] = (),
) -> Capture:
    inputs = tuple(
        _input(held, position, sees_offsets=sees_offsets)
        for position, held in enumerate(traced.held)
    )
    rest = iter(inputs)
    names = {n.name: n.meta["local"] for n in joint.graph.nodes if "local" in n.meta}
    clauses = stage.clauses([held.leaf for held in traced.held])
    return Capture(
        name=traced.name,
        joint=joint,
        inputs=inputs,
        outputs=_outputs(traced),
        in_spec=traced.in_spec,
        out_spec=traced.out_spec,
        leaves=tuple(next(rest) if isinstance(leaf, Tensor) else leaf for leaf in traced.leaves),
        units=tuple(traced.units),
        functions=tuple(traced.functions),
        is_handwritten=traced.is_handwritten,
        local_names=names,
        conditions=joined_clauses(clauses),
        stage=stage,
        sees_offsets=sees_offsets,
        cuts_history=traced.cuts_history,
        clauses=clauses,
        autocast=autocast_now(),
        default_dtype=torch.get_default_dtype(),
        opaque=opaque,
    )


def _input(held: TracedInput, position: int, *, sees_offsets: bool) -> CaptureInput:
    if held.kind == ARGUMENT:
        offset = int(held.real.storage_offset()) if sees_offsets else None
        return CaptureInput(held.name, held.kind, position, None, held.needs, held.free, offset)
    return CaptureInput(held.name, held.kind, None, held.real, held.needs, held.free)


def _outputs(traced: Traced) -> tuple[CaptureOutput, ...]:
    outputs, index = [], 0
    for place, result in enumerate(traced.results):
        inside = is_traced(result.value)
        outputs.append(_output(result, index if inside else None, place < traced.returned))
        index += inside
    return tuple(outputs)


def _output(result: TracedOutput, index: int | None, returned: bool) -> CaptureOutput:
    value = result.value if index is None else None
    kind = "constant" if index is None else "number"
    kind = "tensor" if isinstance(result.value, Tensor) else kind
    return CaptureOutput(
        kind, index, value, result.differentiable, result.used, result.changes, returned
    )
