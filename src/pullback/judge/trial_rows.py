"""Rows of inputs on which a text is compared with its program, drawn from the examples.

Numbers come from the example itself: it shows what the program means by them. Some rows have zeros
and ties among them, where formulas part; some leave the range of the example. Integers are always
those of the example, cropped or repeated: what they index is not known.

A text in Python gets `value_rows` and `size_rows`, a file of kernels those of them that are usual.
An op in C++, which takes more sizes, dtypes and plain numbers than its graphs were captured with
and refuses the rest, gets `op_rows`: the same values, and some more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.fake import numbers_of
from pullback.capture.joint import Capture
from pullback.capture.layouts import in_memory_order
from pullback.capture.seeds import moved_a_little, normal
from pullback.judge.example import can_differ, wide_of
from pullback.judge.tensor_specs import TensorSpec, drawn_like, fitted
from pullback.judge.tolerances import NUDGE
from pullback.judge.trial_sizes import (
    Shapes,
    elements_of,
    other_shapes,
    resized_shapes,
    shown_shapes,
)
from pullback.judge.unchecked_kernels import is_unchecked, points_by_numbers, points_unchecked

MANY = 1 << 12
"""Elements of all inputs from which on smaller ones are tried, where the capture serves them."""

LARGEST = 1 << 22
"""Elements of an input beyond which nothing is tried at sizes of a caller's own choice."""


@dataclass(frozen=True, slots=True, eq=False)
class TrialRow:
    """Tensors for the inputs of a capture, and what is special about them.

    `is_usual` is False where they leave the range of the example: what is not finite there is not
    compared. `is_served` says whether the capture claims to be right for their sizes, and `is_odd`
    whether these are unlikely sizes: a size of 1 beside a larger one, which is broadcast.
    `has_nan` says that NaN is among them: then only outputs are compared, and NaN may spread.
    `is_resized` says that the sizes are others than those of the example. `numbers` are other
    values of plain arguments, by their places. `may_refuse` says that what is written need not
    serve the row, if it says so. `fills_absent` says that zeros in the place of absent cotangents
    may show: beside an infinite slope, the gradients of one output alone are not compared.
    """

    tensors: tuple[Tensor, ...]
    what: str
    is_usual: bool = True
    is_served: bool = True
    is_odd: bool = False
    has_nan: bool = False
    is_resized: bool = False
    numbers: Mapping[int, Any] = field(default_factory=dict)
    may_refuse: bool = False
    fills_absent: bool = False

    def widened(self, captured: Capture) -> TrialRow:
        """The row in double precision; tensors from outside the program stay as they are."""
        pairs = zip(self.tensors, captured.inputs, strict=True)
        wide = (wide_of(t) if one.tensor is None and can_differ(t) else t for t, one in pairs)
        return replace(self, tensors=tuple(wide))

    def nudged(self, captured: Capture, sign: int) -> TrialRow:
        """The row, each number moved by some units in the last place to one side or the other."""
        pairs = zip(self.tensors, captured.inputs, strict=True)
        moved = (
            t if one.tensor is not None or not can_differ(t) else _nudged(t, seed, sign)
            for seed, (t, one) in enumerate(pairs)
        )
        return replace(self, tensors=tuple(moved))


def _nudged(tensor: Tensor, seed: int, sign: int) -> Tensor:
    sides = normal(torch.empty(tensor.shape, device=tensor.device), seed).sign() * sign
    step = (sides * (NUDGE * torch.finfo(tensor.dtype).eps)).to(tensor.dtype)
    return in_memory_order(tensor + tensor * step, tensor.stride())


def value_rows(captured: Capture, specs: Sequence[TensorSpec]) -> list[TrialRow]:
    """The example, or a smaller one in its place, and others of its sizes."""
    shapes = example_shapes(captured, specs)
    rows = [example_row(captured, specs, shapes, "the example")]
    is_risky = points_by_numbers(captured)
    for what, change, is_usual in CHANGES:
        if is_risky and (change is _nan or not is_usual):
            continue
        changed = _changed(captured, rows[0].tensors, change)
        rows.append(TrialRow(changed, what, is_usual, has_nan=change is _nan))
    if (equal := _equal(captured, rows[0].tensors)) is not None:
        rows.append(TrialRow(equal, "equal inputs"))
    return rows


def size_rows(captured: Capture, specs: Sequence[TensorSpec]) -> list[TrialRow]:
    """Rows of other sizes: those that the capture serves, and those that it does not.

    None where an unchecked kernel takes integers, which say where it reads or writes.
    """
    if points_unchecked(captured):
        return []
    others = other_shapes(captured, example_shapes(captured, specs))
    rows = ((example_row(captured, specs, s, shown_shapes(s)), is_odd) for s, is_odd in others)
    return [replace(row, is_odd=is_odd, is_resized=True) for row, is_odd in rows]


def rank_rows(captured: Capture, specs: Sequence[TensorSpec]) -> list[TrialRow]:
    """The example with one dimension more, and one less: of its largest tensors, or of all.

    No capture serves them, but a text takes what it is given.
    """
    if is_unchecked(captured):
        return []
    example = example_row(captured, specs, example_shapes(captured, specs), "")
    own = example.tensors[: captured.argument_count]
    most = max((t.dim() for t in own), default=0)
    rows = dict[Shapes, TrialRow]()
    for least, change in itertools.product({0, 1, most}, (_with_one_more, _with_one_less)):
        row = tuple(change(t) if t.dim() >= least else t for t in own)
        shapes = tuple(tuple(t.shape) for t in row)
        held = [one.tensor for one in captured.inputs if one.tensor is not None]
        rows[shapes] = TrialRow(
            (*row, *held), shown_shapes(shapes), is_served=False, is_odd=True, is_resized=True
        )
    rows.pop(tuple(tuple(t.shape) for t in own), None)
    return list(rows.values())


def _with_one_more(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, moved_a_little(tensor, seed=0)])


def _with_one_less(tensor: Tensor) -> Tensor:
    return tensor[0].clone() if tensor.dim() and len(tensor) else tensor


# ---- for an op ----


def op_rows(
    captured: Capture, specs: Sequence[TensorSpec], *, is_double: bool, numbers: Mapping[int, Any]
) -> Iterator[TrialRow]:
    """The example and other values, a second size, and other plain numbers, where there are such.

    In double precision but for the first one, if `is_double`.
    """
    example, *others = value_rows(captured, specs)
    yield example
    own = tuple(tuple(t.shape) for t in example.tensors[: captured.argument_count])
    grown = resized_shapes(captured, lambda n: n + 1, own)
    if grown != own and not points_unchecked(captured):
        row = example_row(captured, specs, grown, shown_shapes(grown))
        others.append(replace(row, may_refuse=True, is_resized=True))
    if numbers:
        said = "other numbers in the arguments"
        others.append(replace(example, what=said, numbers=numbers, may_refuse=True))
    for row in others:
        row = replace(row, fills_absent=True)
        yield row.widened(captured) if is_double else row


def drawn_row(
    captured: Capture, specs: Sequence[TensorSpec], shapes: Sequence[Sequence[int]]
) -> TrialRow | None:
    """Inputs of these shapes with numbers between those of the example; None if too large.

    Also where an unchecked kernel takes integers, and these are not the shapes of the example.
    """
    is_own = all(tuple(s) == like.shape for s, like in zip(shapes, specs, strict=True))
    if not is_own and points_unchecked(captured):
        return None
    tensors = list[Tensor]()
    rows = zip(shapes, specs, captured.inputs, strict=True)
    for seed, (shape, like, one) in enumerate(rows):
        if one.tensor is not None:
            if tuple(one.tensor.shape) != tuple(shape):
                return None
            tensors.append(one.tensor)
            continue
        if any(size < 0 for size in shape) or math.prod(shape) > LARGEST:
            return None
        if tuple(shape) != like.shape:
            like = replace(like, shape=tuple(shape), values=None)
        tensors.append(drawn_like(like, seed))
    what = f"inputs of the sizes {', '.join(str(tuple(shape)) for shape in shapes)}"
    return TrialRow(tuple(tensors), what, is_resized=not is_own)


# ---- values ----


def _only_zeros(flat: Tensor, places: Tensor) -> Tensor:
    return torch.zeros_like(flat)


def _zeros(flat: Tensor, places: Tensor) -> Tensor:
    return torch.where(places % 3 == 0, torch.zeros_like(flat), flat)


def _ties(flat: Tensor, places: Tensor) -> Tensor:
    return flat[places % min(3, (flat.numel() + 1) // 2)]


def _infinities(flat: Tensor, places: Tensor) -> Tensor:
    signs = flat.new_tensor([math.inf, -math.inf])
    return torch.where(places % 4 == 1, signs[places // 4 % 2], flat)


def _nan(flat: Tensor, places: Tensor) -> Tensor:
    return torch.where(places % 4 == 1, torch.full_like(flat, math.nan), flat)


CHANGES: tuple[tuple[str, Callable[[Tensor, Tensor], Tensor], bool], ...] = (
    ("zeros among them", _zeros, True),
    ("ties among them", _ties, True),
    ("NaN among them", _nan, True),
    ("infinities among them", _infinities, False),
    ("nothing but zeros", _only_zeros, False),
    ("the example with the other sign", lambda flat, places: -flat, False),
    ("the example 1000 times as large", lambda flat, places: 1000 * flat, False),
)
"""What is done to the numbers of the example, and whether a program is made for that."""


def _changed(
    captured: Capture, tensors: Sequence[Tensor], change: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, ...]:
    """The row with the numbers of the arguments changed; integers stay."""
    return tuple(
        change(t.flatten(), torch.arange(t.numel(), device=t.device)).reshape(t.shape)
        if one.tensor is None and can_differ(t) and t.numel()
        else t
        for t, one in zip(tensors, captured.inputs, strict=True)
    )


def _equal(captured: Capture, tensors: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """The row with one and the same values in all arguments of a kind; None if no two are alike."""
    first: dict[object, Tensor] = {}
    row = [
        first.setdefault((t.shape, t.dtype), t) if one.tensor is None and can_differ(t) else t
        for t, one in zip(tensors, captured.inputs, strict=True)
    ]
    return None if all(a is b for a, b in zip(row, tensors, strict=True)) else tuple(row)


# ---- the example ----


def example_row(
    captured: Capture, specs: Sequence[TensorSpec], shapes: Shapes, what: str
) -> TrialRow:
    """The example in other shapes, laid out in memory as it was."""
    tensors = list[Tensor]()
    inputs = zip(captured.inputs, captured.joint.inputs, specs, strict=True)
    for place, (one, node, like) in enumerate(inputs):
        if one.tensor is not None:
            tensors.append(one.tensor)
        else:
            made = fitted(like, shapes[place], seed=place)
            if any(new > old <= 1 for old, new in zip(like.shape, shapes[place], strict=True)):
                # Copies of one row hide what depends on the others.
                made = moved_a_little(made, seed=place)
            tensors.append(in_memory_order(made, numbers_of(node.meta["val"].stride())))
    own = tensors[: captured.argument_count]
    return TrialRow(tuple(tensors), what, is_served=captured.serves(own))


def example_shapes(captured: Capture, specs: Sequence[TensorSpec]) -> Shapes:
    """The shapes of the example's arguments, or of a smaller one that is served, if it is large."""
    own = tuple(like.shape for like in specs[: captured.argument_count])
    if elements_of(own) <= MANY:
        return own
    ways: tuple[Callable[[int], int], ...] = (
        lambda n: n if n < 16 else 8 + n % 8,
        lambda n: n if n < 48 else 24 + n % 24,
        lambda n: n if n < 1024 else 24 + n % 24,
    )
    for grow in ways:
        shapes = resized_shapes(captured, grow)
        is_fewer = elements_of(shapes) < elements_of(own)
        if is_fewer and example_row(captured, specs, shapes, "").is_served:
            return shapes
    return own
