"""Both sides of a comparison: the hand-written and the derived gradients of one function.

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
from pullback.prove.numerics import Point
from pullback.prove.scalars import Outside, Scalar, number, variable
from pullback.prove.symbols import Reading

SMALL, LARGE = 16, 64  # elements, in inputs and cotangents together: to prefer, and at most

Program = Callable[..., Any]
Shapes = tuple[tuple[int, ...], ...]
Key = int
"""Whose gradient: the place of an argument among the tensors, or the identity of a closure."""


class UnreadableError(Exception):
    """Two programs cannot be compared by expressions; the text is the reason."""


# ---- capture ----


@dataclass(frozen=True, slots=True, eq=False)
class Side:
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
        return [key_of(place, i) for place, i in enumerate(self.captured.inputs) if i.needs]


def key_of(place: int, given: CaptureInput) -> Key:
    """What tells an input from the others, on both sides."""
    return place if given.tensor is None else id(given.tensor)


def sides_of(hand: Program, derived: Program, examples: Sequence[Any]) -> Sides:
    """Both programs, captured in double precision; raises `UnreadableError`."""
    leaves, spec = flatten(tuple(examples))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    wanted = any(tensor.requires_grad for tensor in tensors)
    with torch.enable_grad():
        prepared = [_prepared(x, wanted) if isinstance(x, Tensor) else x for x in leaves]
    args = unflatten(prepared, spec)
    first, second = captured_side(hand, args), captured_side(derived, args)
    _require_comparable(first, second)
    if second.used != first.used:
        second = captured_side(derived, args, used=_common(first, second))
    own = tuple(x.detach() for x in prepared if isinstance(x, Tensor))
    return Sides(first, second, own, tuple(args))


def _prepared(tensor: Tensor, wanted: bool) -> Tensor:
    """A tensor in double precision that may be changed in place, as no leaf can."""
    if not tensor.is_floating_point():
        return tensor
    double = tensor.detach().to(torch.float64).contiguous()
    needs = tensor.requires_grad or not wanted
    return double.clone().requires_grad_().clone() if needs else double.clone()


def captured_side(
    program: Program,
    args: Sequence[Any],
    *,
    needs: Sequence[bool] | None = None,
    used: Sequence[bool] | None = None,
) -> Side:
    """`program`, captured on `args`, as `capture` does it; raises `UnreadableError`."""
    try:
        return Side(program, capture(program, args, needs=needs, used=used))
    except CaptureError as error:
        raise UnreadableError(f"no graph: {error.rule}, got {error.facts['got']}") from None


def _common(hand: Side, derived: Side) -> list[bool]:
    """For each differentiable output of the derived side, whether the hand-written one uses it."""
    outputs = enumerate(derived.captured.outputs)
    return [place in hand.used for place, output in outputs if output.differentiable]


def _require_comparable(hand: Side, derived: Side) -> None:
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
class Sides:
    """The hand-written side and the derived one, on the same examples.

    `tensors` are those in the examples, `args` the examples as both programs were given them.
    """

    hand: Side
    derived: Side
    tensors: tuple[Tensor, ...]
    args: tuple[Any, ...]

    @property
    def names(self) -> dict[Key, str]:
        """The inputs whose gradients are compared, with the user's names."""
        own = self.hand.captured.inputs
        sides = (self.hand.captured, self.derived.captured)
        needed = [(p, i) for side in sides for p, i in enumerate(side.inputs) if i.needs]
        return {key_of(p, i): own[p].name if i.tensor is None else i.name for p, i in needed}

    @property
    def fixed(self) -> list[str]:
        """The inputs that are taken as they are: whole numbers, and what comes from around."""
        own = zip(self.hand.captured.inputs, self.tensors, strict=False)
        whole = [given.name for given, tensor in own if not tensor.is_floating_point()]
        return whole + [i.name for i in self.hand.captured.inputs if i.kind == "closure"]

    def views(self) -> list[View]:
        """The two sides at sizes to compare them at, one or two: the first is to prove at.

        Raises `UnreadableError` if no sizes will do.
        """
        own = self._view(lambda size: size)
        is_whole = any(not tensor.is_floating_point() for tensor in self.tensors)
        ways = [] if is_whole else [*map(_numbering, _NUMBERINGS), lambda size: size + 1]
        others = [view for way in ways if (view := self._view(way)) is not None]
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


# What the sizes of the examples become, in their order: best are sizes that can be told apart.
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
    """Both sides at given sizes: as expressions, and as programs to run."""

    def __init__(self, sides: Sides, tensors: tuple[Tensor, ...], cotangents: Shapes) -> None:
        self.sides = sides
        self.tensors = tensors
        inputs = sides.hand.captured.inputs
        floats = {p: t for p, t in enumerate(tensors) if t.is_floating_point()}
        self.inputs = {p: _variables(inputs[p].name, t.shape) for p, t in floats.items()}
        self.cotangents = {
            place: (_variables(f"cotangent({place})", shape), shape)
            for place, shape in zip(sides.hand.used, cotangents, strict=True)
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
    def hand(self) -> Reading:
        """The hand-written side, read."""
        return self._reading(self.sides.hand)

    @cached_property
    def derived(self) -> Reading:
        """The derived side, read."""
        return self._reading(self.sides.derived)

    def _reading(self, side: Side) -> Reading:
        row = side.captured.row(self.tensors)
        given = [
            (self.inputs.get(place) or _numbers(tensor), tuple(tensor.shape))
            for place, tensor in enumerate(row)
        ]
        return Reading(side.captured.joint, [*given, *(self.cotangents[p] for p in side.used)])

    def gradient(self, key: Key, *, hand: bool) -> list[Scalar]:
        """The elements of a gradient on one side; raises `Outside`."""
        side = self.sides.hand if hand else self.sides.derived
        reading = self.hand if hand else self.derived
        found = reading.gradient(side.keys.index(key)) if key in side.keys else None
        return [number(0)] * math.prod(self.shape(key)) if found is None else found

    @cached_property
    def outputs(self) -> dict[Scalar, Scalar]:
        """The elements of the outputs that can be read, by the variables of their cotangents."""
        found: dict[Scalar, Scalar] = {}
        side = self.sides.derived
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
        both = (self.sides.hand, self.sides.derived)
        closures = [i.tensor for side in both for i in side.captured.inputs]
        return next(tuple(t.shape) for t in closures if t is not None and id(t) == key)

    def plainly(self, text: str) -> str:
        """`text` without indices, where they say nothing: one element of each input is as any."""
        for place in self.inputs:
            element = rf"(?<!\w){re.escape(self.sides.hand.captured.inputs[place].name)}\[[\d, ]+\]"
            if len(set(re.findall(element, text))) == 1:
                text = re.sub(element, self.sides.hand.captured.inputs[place].name, text)
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
        like = self.sides.hand.captured.joint.cotangents
        devices = [node.meta["val"].device for node in like]
        rows = zip(self.cotangents.values(), devices, strict=True)
        cotangents = [_filled(*row, point).to(device) for row, device in rows]
        return arguments, cotangents

    def run(self, point: Point, *, hand: bool) -> dict[Key, list[float]]:
        """The gradients that one program gives at a point, in float64.

        Raises `ValueError` where an output is not finite: its gradients are nobody's business.
        """
        side = self.sides.hand if hand else self.sides.derived
        arguments, cotangents = self.tensors_at(point)
        captured = side.captured
        needs = [captured.inputs[place].needs for place in range(len(arguments))]
        own = [x.requires_grad_(need) for x, need in zip(arguments, needs, strict=True)]
        with torch.enable_grad():
            given = [x.clone() if x.requires_grad else x for x in own]
            leaves = flatten(side.program(*captured.fill(given)))[0]
            pairs = zip(self.cotangents, cotangents, strict=True)
            outputs = [(leaves[place], c) for place, c in pairs if leaves[place].requires_grad]
            if not all(bool(output.isfinite().all()) for output, _ in outputs):
                raise ValueError("an output is not finite")
            row = captured.row(own)
            wanted = [x for x, i in zip(row, captured.inputs, strict=True) if i.needs]
            gradients = _pulled([o for o, _ in outputs], wanted, [c for _, c in outputs])
        values = [_listed(g, x) for g, x in zip(gradients, wanted, strict=True)]
        return dict(zip(side.keys, values, strict=True))


def _variables(name: str, shape: Sequence[int]) -> list[Scalar]:
    if not shape:
        return [variable(name)]
    indices = itertools.product(*map(range, shape))
    return [variable(f"{name}[{', '.join(map(str, index))}]") for index in indices]


def _numbers(tensor: Tensor) -> list[Scalar]:
    return [number(value) for value in tensor.detach().flatten().tolist()]


def _filled(scalars: Sequence[Scalar], shape: Sequence[int], point: Point) -> Tensor:
    values = [float(point[scalar]) for scalar in scalars]
    return torch.tensor(values, dtype=torch.float64).reshape(tuple(shape))


def _pulled(
    outputs: list[Tensor], wanted: list[Tensor], cotangents: list[Tensor]
) -> Sequence[Tensor | None]:
    if not outputs or not wanted:
        return [None] * len(wanted)
    return torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True)


def _listed(gradient: Tensor | None, like: Tensor) -> list[float]:
    whole = torch.zeros_like(like) if gradient is None else gradient
    return [float(value) for value in whole.detach().flatten().tolist()]
