"""The two programs of a proof: one with the hand-written backward, one that PyTorch differentiates.

Both are captured with symbols for their sizes, so that they can be read, and run, for sizes that
are small enough to compare every element.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pullback.capture.fake import numbers_of, with_other_sizes
from pullback.capture.joint import Capture, CaptureInput, capture
from pullback.capture.trees import flatten, unflatten
from pullback.errors import CaptureError
from pullback.judge.run import pulled_gradients, used_outputs
from pullback.prove.graph_reader import GraphReader
from pullback.prove.numerics import Point
from pullback.prove.scalars import Outside, Scalar, known_number, variable

SMALL, LARGE = 16, 64  # elements, in inputs and cotangents together: to prefer, and at most

Program = Callable[..., Any]
Shapes = tuple[tuple[int, ...], ...]
Key = int
"""An input: its place among the tensor arguments, or the `id` of a tensor from a closure."""


class UnreadableError(Exception):
    """Two programs cannot be compared by expressions; the text is the reason."""


# ---- capture ----


@dataclass(frozen=True, slots=True, eq=False)
class CapturedProgram:
    """One program, and its joint graph."""

    program: Program
    captured: Capture

    @property
    def used(self) -> list[int]:
        """The outputs that have a cotangent, by their places among the outputs."""
        return [place for place, output in enumerate(self.captured.outputs) if output.used]

    @property
    def shapes(self) -> dict[int, tuple[int, ...]]:
        """The shapes of those outputs, for the examples."""
        values = [node.meta["val"].shape for node in self.captured.joint.cotangents]
        return dict(zip(self.used, map(numbers_of, values), strict=True))

    @property
    def keys(self) -> list[Key]:
        """Whose gradients the graph has, in its order."""
        return [gradient_key(place, i) for place, i in enumerate(self.captured.inputs) if i.needs]


def gradient_key(place: int, given: CaptureInput) -> Key:
    """The key of an input, the same for both programs."""
    return place if given.tensor is None else id(given.tensor)


def pair_of_programs(hand: Program, derived: Program, examples: Sequence[Any]) -> ProgramPair:
    """Both programs captured in double precision; raises `UnreadableError`."""
    leaves, spec = flatten(tuple(examples))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    wanted = any(tensor.requires_grad for tensor in tensors)
    with torch.enable_grad():
        prepared = [_prepared(x, wanted) if isinstance(x, Tensor) else x for x in leaves]
    args = unflatten(prepared, spec)
    first, second = captured_program(hand, args), captured_program(derived, args)
    _require_comparable(first, second)
    if second.used != first.used:
        second = captured_program(derived, args, used=_common(first, second))
    own = tuple(x.detach() for x in prepared if isinstance(x, Tensor))
    return ProgramPair(first, second, own, tuple(args))


def _prepared(tensor: Tensor, wanted: bool) -> Tensor:
    """A tensor in double precision that is no leaf, so that it may be changed in place."""
    if not tensor.is_floating_point():
        return tensor
    double = tensor.detach().to(torch.float64).contiguous()
    needs = tensor.requires_grad or not wanted
    return double.clone().requires_grad_().clone() if needs else double.clone()


def captured_program(
    program: Program,
    args: Sequence[Any],
    *,
    needs: Sequence[bool] | None = None,
    used: Sequence[bool] | None = None,
) -> CapturedProgram:
    """`program`, captured on `args`, as `capture` does it; raises `UnreadableError`."""
    try:
        return CapturedProgram(program, capture(program, args, needs=needs, used=used))
    except CaptureError as error:
        raise UnreadableError(f"no graph: {error.rule}, got {error.facts['got']}") from None


def _common(hand: CapturedProgram, derived: CapturedProgram) -> list[bool]:
    """Which differentiable outputs of the derived program the hand-written one uses."""
    outputs = enumerate(derived.captured.outputs)
    return [place in hand.used for place, output in outputs if output.differentiable]


def _require_comparable(hand: CapturedProgram, derived: CapturedProgram) -> None:
    if hand.captured.out_spec != derived.captured.out_spec:
        raise UnreadableError("the two programs do not return the same number of outputs")
    both = {**hand.shapes, **derived.shapes}
    if both != {**derived.shapes, **hand.shapes}:
        raise UnreadableError("the two programs do not return outputs of the same shapes")
    for side in (hand, derived):
        for given in side.captured.joint.inputs:
            if given.meta["val"].is_complex():
                raise UnreadableError(f"complex input `{given.name}`")
        if any(o.differentiable and not o.returned for o in side.captured.outputs):
            raise UnreadableError("an input is changed in place and not returned")


# ---- sizes ----


@dataclass(frozen=True, slots=True, eq=False)
class ProgramPair:
    """The hand-written program and the derived one, on the same examples.

    `tensors` are those in the examples, `args` the examples as both programs were called with.
    """

    hand: CapturedProgram
    derived: CapturedProgram
    tensors: tuple[Tensor, ...]
    args: tuple[Any, ...]

    @property
    def names(self) -> dict[Key, str]:
        """The inputs whose gradients are compared, with the user's names."""
        own = self.hand.captured.inputs
        programs = (self.hand.captured, self.derived.captured)
        needed = [(p, i) for side in programs for p, i in enumerate(side.inputs) if i.needs]
        return {gradient_key(p, i): own[p].name if i.tensor is None else i.name for p, i in needed}

    @property
    def fixed(self) -> list[str]:
        """The inputs with fixed values: integer tensors, and tensors from a closure."""
        own = zip(self.hand.captured.inputs, self.tensors, strict=False)
        whole = [given.name for given, tensor in own if not tensor.is_floating_point()]
        return whole + [i.name for i in self.hand.captured.inputs if i.kind == "closure"]

    def views(self) -> list[View]:
        """Both programs at one or two choices of sizes: proofs are made at the first.

        Raises `UnreadableError` if no sizes will do.
        """
        own = self._view(lambda size: size)
        is_whole = any(not tensor.is_floating_point() for tensor in self.tensors)
        resizings = [] if is_whole else [*map(_numbering, _NUMBERINGS), lambda size: size + 1]
        others = [view for resize in resizings if (view := self._view(resize)) is not None]
        order = [own, *others] if own is not None and own.count <= SMALL else [*others, own]
        fitting = [view for view in order if view is not None]
        different = {view.shapes: view for view in reversed(fitting)}
        chosen = [view for view in fitting if different[view.shapes] is view]
        if not chosen:
            raise UnreadableError(f"shapes: more than {LARGE} elements, and none smaller will do")
        return [chosen[0], *([chosen[-1]] if len(chosen) > 1 else [])]

    def _view(self, grow: Callable[[int], int]) -> View | None:
        captured = self.hand.captured
        values = [node.meta["val"].shape for node in captured.joint.placeholders]
        count, ends = len(self.tensors), captured.joint.input_count
        shapes = with_other_sizes([*values[:count], *values[ends:]], values[count:ends], grow)
        if sum(map(math.prod, shapes)) > LARGE:
            return None
        tensors = [
            tensor if tuple(tensor.shape) == shape else tensor.new_ones(shape)
            for tensor, shape in zip(self.tensors, shapes, strict=False)
        ]
        both = (captured, self.derived.captured)
        if not all(side.serves(tensors) for side in both):
            return None
        return View(self, tuple(tensors), tuple(shapes[count:]))


# What the sizes of the examples become, in their order: best are sizes that differ.
_NUMBERINGS = [range(2, 100), [2, 3] * 50, [2] * 100, [2, 4] * 50]


def _numbering(numbers: Sequence[int]) -> Callable[[int], int]:
    rest = iter(numbers)
    known: dict[int, int] = {}

    def grow(size: int) -> int:
        if size not in known:
            known[size] = next(rest)
        return known[size]

    return grow


class View:
    """Both programs at given sizes: as expressions, and to run."""

    def __init__(
        self, programs: ProgramPair, tensors: tuple[Tensor, ...], cotangents: Shapes
    ) -> None:
        self.programs = programs
        self.tensors = tensors
        inputs = programs.hand.captured.inputs
        floats = {p: t for p, t in enumerate(tensors) if t.is_floating_point()}
        self.inputs = {p: _variables(inputs[p].name, t.shape) for p, t in floats.items()}
        self.cotangents = {
            place: (_variables(f"cotangent({place})", shape), shape)
            for place, shape in zip(programs.hand.used, cotangents, strict=True)
        }

    @property
    def shapes(self) -> Shapes:
        """Those of the arguments."""
        return tuple(tuple(tensor.shape) for tensor in self.tensors)

    @property
    def count(self) -> int:
        """How many elements there are in the inputs and cotangents."""
        return len(self.variables)

    @property
    def variables(self) -> list[Scalar]:
        """The elements of the inputs, then those of the cotangents."""
        return [*itertools.chain.from_iterable(self.inputs.values()), *self.cotangent_variables]

    @property
    def cotangent_variables(self) -> list[Scalar]:
        """The elements of the cotangents."""
        rows = [scalars for scalars, _ in self.cotangents.values()]
        return list(itertools.chain.from_iterable(rows))

    # ---- as expressions ----

    @cached_property
    def hand(self) -> GraphReader:
        """The graph of the hand-written program, read as expressions."""
        return self._reading(self.programs.hand)

    @cached_property
    def derived(self) -> GraphReader:
        """The graph of the derived program, read as expressions."""
        return self._reading(self.programs.derived)

    def _reading(self, side: CapturedProgram) -> GraphReader:
        row = side.captured.row(self.tensors)
        given = [
            (self.inputs.get(place) or _numbers(tensor), tuple(tensor.shape))
            for place, tensor in enumerate(row)
        ]
        return GraphReader(side.captured.joint, [*given, *(self.cotangents[p] for p in side.used)])

    def gradient(self, key: Key, *, hand: bool) -> list[Scalar]:
        """The elements of a gradient of one program; raises `Outside`."""
        side = self.programs.hand if hand else self.programs.derived
        reading = self.hand if hand else self.derived
        found = reading.gradient(side.keys.index(key)) if key in side.keys else None
        return [known_number(0)] * math.prod(self.shape(key)) if found is None else found

    @cached_property
    def outputs(self) -> dict[Scalar, Scalar]:
        """The elements of the outputs that can be read, by the variables of their cotangents."""
        found: dict[Scalar, Scalar] = {}
        side = self.programs.derived
        for place in side.used:
            index = side.captured.outputs[place].index
            if index is None:
                continue
            try:
                elements = self.derived.elements(side.captured.joint.outputs[index])
            except Outside:
                continue
            found |= dict(zip(self.cotangents[place][0], elements, strict=True))
        return found

    def shape(self, key: Key) -> tuple[int, ...]:
        """The shape of a gradient."""
        if key in self.inputs:
            return tuple(self.tensors[key].shape)
        both = (self.programs.hand, self.programs.derived)
        closures = [i.tensor for side in both for i in side.captured.inputs]
        return next(tuple(t.shape) for t in closures if t is not None and id(t) == key)

    def without_indices(self, text: str) -> str:
        """`text` without indices, where it mentions only one element of an input."""
        for place in self.inputs:
            name = self.programs.hand.captured.inputs[place].name
            element = rf"(?<!\w){re.escape(name)}\[[\d, ]+\]"
            if len(set(re.findall(element, text))) == 1:
                text = re.sub(element, name, text)
        return text

    # ---- as programs ----

    def tensors_at(self, point: Point) -> tuple[list[Tensor], list[Tensor]]:
        """The arguments and the cotangents at a point."""
        arguments = [
            _filled(self.inputs[place], tensor.shape, point).to(tensor.device)
            if place in self.inputs
            else tensor
            for place, tensor in enumerate(self.tensors)
        ]
        like = self.programs.hand.captured.joint.cotangents
        devices = [node.meta["val"].device for node in like]
        rows = zip(self.cotangents.values(), devices, strict=True)
        cotangents = [_filled(*row, point).to(device) for row, device in rows]
        return arguments, cotangents

    def run(self, point: Point, *, hand: bool) -> dict[Key, list[float]]:
        """The gradients that one program gives at a point, in float64.

        Raises `ValueError` where an output is not finite: no gradient is expected there.
        """
        side = self.programs.hand if hand else self.programs.derived
        arguments, cotangents = self.tensors_at(point)
        captured = side.captured
        needs = [captured.inputs[place].needs for place in range(len(arguments))]
        own = [x.requires_grad_(need) for x, need in zip(arguments, needs, strict=True)]
        with torch.enable_grad():
            given = [x.clone() if x.requires_grad else x for x in own]
            leaves = flatten(side.program(*captured.fill(given)))[0]
            used = used_outputs([leaves[place] for place in self.cotangents], cotangents)
            if not all(bool(output.isfinite().all()) for output, _ in used):
                raise ValueError("an output is not finite")
            row = captured.row(own)
            wanted = [x for x, i in zip(row, captured.inputs, strict=True) if i.needs]
            gradients = pulled_gradients(used, wanted)
        values = [_listed(g, x) for g, x in zip(gradients, wanted, strict=True)]
        return dict(zip(side.keys, values, strict=True))


def _variables(name: str, shape: Sequence[int]) -> list[Scalar]:
    if not shape:
        return [variable(name)]
    indices = itertools.product(*map(range, shape))
    return [variable(f"{name}[{', '.join(map(str, index))}]") for index in indices]


def _numbers(tensor: Tensor) -> list[Scalar]:
    return [known_number(value) for value in tensor.detach().flatten().tolist()]


def _filled(scalars: Sequence[Scalar], shape: Sequence[int], point: Point) -> Tensor:
    values = [float(point[scalar]) for scalar in scalars]
    return torch.tensor(values, dtype=torch.float64).reshape(tuple(shape))


def _listed(gradient: Tensor | None, like: Tensor) -> list[float]:
    whole = torch.zeros_like(like) if gradient is None else gradient
    return [float(value) for value in whole.detach().flatten().tolist()]
