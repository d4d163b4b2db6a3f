"""Rows of inputs on which a text is compared with its program, drawn from the examples.

Numbers come from the example itself: it shows what the program means by them. Some rows have zeros
and ties among them, where formulas part; some leave the range of the example. Integers are always
those of the example, cropped or repeated: what they index is not known.

A text in Python gets `value_rows` and `size_rows`. An op in C++, which takes more sizes, dtypes and
plain numbers than its graphs were captured with and refuses the rest, gets `op_rows`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.fake import is_open, numbers_of, with_other_sizes
from pullback.capture.indices import is_index
from pullback.capture.joint import Capture
from pullback.capture.seeds import in_memory_order, moved_a_little
from pullback.derive.tensor_specs import TensorSpec, drawn_like, fitted
from pullback.graph.cost import is_opaque, op_name
from pullback.graph.cut_problem import ancestors
from pullback.graph.parts import calls
from pullback.graph.values import held_value

MANY = 1 << 12
"""Elements of all inputs from which on smaller ones are tried, where the capture serves them."""

SIZES = 16
"""Rows of other sizes of a kind that are tried: each costs a run of the program and of the text."""

SMALL_SIZE = 16
"""Sizes beyond which the second size of an op is a small one."""

LARGEST = 1 << 22
"""Elements of an input beyond which nothing is tried at sizes of a caller's own choice."""

UNCHECKED = (
    *("attention", "segment_reduce", "embedding_bag", "_fft_c2r", "cudnn", "miopen"),
    *("lu_unpack", "lu_solve", "ldl_solve"),
)
"""Parts of the names of ops with kernels that go by one size in memory of another."""

BY_NUMBERS = ("grid_sampler",)
"""The same of ops with kernels that make places in memory of real numbers, also of NaN."""

Shapes = tuple[tuple[int, ...], ...]


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
        wide = (t if one.tensor is not None else _double(t) for t, one in pairs)
        return replace(self, tensors=tuple(wide))


def _double(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def value_rows(captured: Capture, specs: Sequence[TensorSpec]) -> list[TrialRow]:
    """The example, or a smaller one in its place, and others of its sizes."""
    shapes = _few(captured, specs)
    rows = [_row(captured, specs, shapes, "the example")]
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
    base = _few(captured, specs)
    seen, rows = {base}, list[TrialRow]()
    kinds = (_grown, _renumbered, _alone, _parted)
    for kind in kinds:
        for shapes in itertools.islice(kind(captured, base), SIZES):
            if shapes not in seen:
                seen.add(shapes)
                row = _row(captured, specs, shapes, _shown(shapes))
                is_served = row.is_served and not _is_emptied(base, shapes)
                is_odd = kind is _parted
                rows.append(replace(row, is_odd=is_odd, is_resized=True, is_served=is_served))
    return rows


def _is_emptied(base: Shapes, shapes: Shapes) -> bool:
    """Whether a tensor has no elements that had some: a text may refuse that, if it says so."""
    return any(0 in new and 0 not in old for old, new in zip(base, shapes, strict=True))


def rank_rows(captured: Capture, specs: Sequence[TensorSpec]) -> list[TrialRow]:
    """The example with one dimension more, and one less: of its largest tensors, or of all.

    No capture serves them, but a text takes what it is given.
    """
    if is_unchecked(captured):
        return []
    own = _row(captured, specs, _few(captured, specs), "").tensors[: captured.argument_count]
    most = max((t.dim() for t in own), default=0)
    rows = dict[Shapes, TrialRow]()
    for least, change in itertools.product({0, 1, most}, (_with_one_more, _with_one_less)):
        row = tuple(change(t) if t.dim() >= least else t for t in own)
        shapes = tuple(tuple(t.shape) for t in row)
        held = [one.tensor for one in captured.inputs if one.tensor is not None]
        rows[shapes] = TrialRow(
            (*row, *held), _shown(shapes), is_served=False, is_odd=True, is_resized=True
        )
    rows.pop(tuple(tuple(t.shape) for t in own), None)
    return list(rows.values())


def _with_one_more(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, moved_a_little(tensor, seed=0)])


def _with_one_less(tensor: Tensor) -> Tensor:
    return tensor[0].clone() if tensor.dim() and len(tensor) else tensor


def _shown(shapes: Shapes) -> str:
    return "inputs of shape " + ", ".join(str(list(shape)) for shape in shapes)


# ---- for an op ----


def op_rows(
    captured: Capture, specs: Sequence[TensorSpec], *, is_double: bool, numbers: Mapping[int, Any]
) -> Iterator[TrialRow]:
    """The example, a second size, ties, zeros, and other plain numbers, where there are such.

    In double precision but for the first one, if `is_double`.
    """
    shapes = [node.meta["val"].shape for node in captured.joint.inputs]
    count = captured.argument_count
    own = tuple(numbers_of(shape) for shape in shapes)
    grown = with_other_sizes(
        shapes[:count], shapes[count:], lambda n: n + 1 if n <= SMALL_SIZE else 5
    )
    others = (*grown, *own[count:])
    example, other = (drawn_row(captured, specs, sizes) for sizes in (own, others))
    if example is not None:
        yield replace(example, what="inputs like the examples")
    if other is not None and others != own:
        other = replace(other, may_refuse=True)
        yield other.widened(captured) if is_double else other
    if example is None:
        return
    wide = example.widened(captured) if is_double else example
    for what, change in (("inputs of two values each", _two_values), ("zeros", _only_zeros)):
        changed = _changed(captured, wide.tensors, change)
        yield replace(wide, tensors=changed, what=what, fills_absent=True)
    if numbers:
        said = "other numbers in the arguments"
        yield replace(wide, what=said, numbers=numbers, may_refuse=True)


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


def _two_values(flat: Tensor, places: Tensor) -> Tensor:
    numbers = flat.real if flat.is_complex() else flat
    return torch.where(places % 3 == 0, flat[numbers.argmin()], flat[numbers.argmax()])


def _only_zeros(flat: Tensor, places: Tensor) -> Tensor:
    return torch.zeros_like(flat)


def _zeros(flat: Tensor, places: Tensor) -> Tensor:
    return torch.where(places % 3 == 0, torch.zeros_like(flat), flat)


def _ties(flat: Tensor, places: Tensor) -> Tensor:
    return flat[places % min(3, flat.numel())]


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
        if one.tensor is None and _is_number(t) and t.numel()
        else t
        for t, one in zip(tensors, captured.inputs, strict=True)
    )


def _equal(captured: Capture, tensors: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """The row with one and the same values in all arguments of a kind; None if no two are alike."""
    first: dict[object, Tensor] = {}
    row = [
        first.setdefault((t.shape, t.dtype), t) if one.tensor is None and _is_number(t) else t
        for t, one in zip(tensors, captured.inputs, strict=True)
    ]
    return None if all(a is b for a, b in zip(row, tensors, strict=True)) else tuple(row)


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


# ---- sizes ----


def _row(captured: Capture, specs: Sequence[TensorSpec], shapes: Shapes, what: str) -> TrialRow:
    """The example in other shapes, laid out in memory as it was."""
    tensors = list[Tensor]()
    inputs = zip(captured.inputs, captured.joint.inputs, specs, strict=True)
    for place, (one, node, like) in enumerate(inputs):
        if one.tensor is not None:
            tensors.append(one.tensor)
        else:
            made = fitted(like, shapes[place], seed=place)
            if any(new > old <= 1 for old, new in zip(like.shape, shapes[place], strict=True)):
                made = moved_a_little(
                    made, seed=place
                )  # copies of one row hide what depends on the others
            tensors.append(in_memory_order(made, numbers_of(node.meta["val"].stride())))
    own = tensors[: captured.argument_count]
    return TrialRow(tuple(tensors), what, is_served=captured.serves(own))


def _few(captured: Capture, specs: Sequence[TensorSpec]) -> Shapes:
    """The shapes of the example's arguments, or of a smaller one that is served, if it is large."""
    own = tuple(like.shape for like in specs[: captured.argument_count])
    if _elements(own) <= MANY:
        return own
    ways: tuple[Callable[[int], int], ...] = (
        lambda n: n if n < 16 else 8 + n % 8,
        lambda n: n if n < 48 else 24 + n % 24,
        lambda n: n if n < 1024 else 24 + n % 24,
    )
    for grow in ways:
        shapes = _resized(captured, grow)
        if _elements(shapes) < _elements(own) and _row(captured, specs, shapes, "").is_served:
            return shapes
    return own


def _grown(captured: Capture, base: Shapes) -> Iterator[Shapes]:
    """Shapes with other sizes, in which what was equal stays so."""
    numbers = {size for shape in base for size in shape}
    yield _resized(captured, lambda n: n + 1, base)
    yield _resized(captured, lambda n: 2 * n, base)
    for old, new in ((1, 2), (1, 5), (0, 3)):
        yield tuple(tuple(new if size == old else size for size in shape) for shape in base)
    for other in (lambda n: n + 1, lambda n: 1, lambda n: 0, lambda n: 2 * n, lambda n: 3 * n + 1):
        for number in sorted(numbers):
            yield _resized(captured, lambda n, m=number, f=other: f(n) if n == m else n, base)  # type: ignore[misc]


def _parted(captured: Capture, base: Shapes) -> Iterator[Shapes]:
    """Shapes in which one size that equals those of other inputs is 1, and one that is 1 is not.

    PyTorch's own ops look at the sizes that they are given, and refuse or broadcast them.
    """
    if is_unchecked(captured) or len(base) == 1:
        return
    for place, shape in enumerate(base):
        for dim, size in enumerate(shape):
            other = max(map(max, filter(None, base))) if size == 1 else 1
            changed = (*shape[:dim], other, *shape[dim + 1 :])
            yield (*base[:place], changed, *base[place + 1 :])


def _renumbered(captured: Capture, base: Shapes) -> Iterator[Shapes]:
    """Shapes with other numbers in the place of one that sizes are fixed to."""
    if is_unchecked(captured):
        return
    fixed = _fixed(captured)
    pairs = [zip(flags, shape, strict=True) for flags, shape in zip(fixed, base, strict=True)]
    for number in sorted({size for pair in pairs for flag, size in pair if flag}):
        for new in (number + 1, 2 * number, 3 * number + 1, 1, 0):
            yield _replaced(base, fixed, number, new)


def _alone(captured: Capture, base: Shapes) -> Iterator[Shapes]:
    """Shapes with another number in one place that is fixed, which may equal others by chance."""
    if is_unchecked(captured):
        return
    for place, sizes in enumerate(_sizes(captured)):
        for dim, size in enumerate(sizes):
            if not is_open(size):
                shape = base[place]
                other = _LARGER.get(shape[dim], shape[dim] + 1)
                changed = (*shape[:dim], other, *shape[dim + 1 :])
                yield (*base[:place], changed, *base[place + 1 :])


_LARGER = {0: 3, 1: 5}  # larger than what a slice or a chunk of such an example leaves out


def _fixed(captured: Capture) -> list[list[bool]]:
    """For each size of each argument, whether it is a number in the capture, and not 0 or 1."""
    return [[not is_open(size) and size > 1 for size in shape] for shape in _sizes(captured)]


def _sizes(captured: Capture) -> list[Sequence[int]]:
    """The sizes of each argument: numbers, or symbols."""
    return [node.meta["val"].shape for node in captured.joint.inputs[: captured.argument_count]]


def _replaced(base: Shapes, fixed: Sequence[Sequence[bool]], number: int, new: int) -> Shapes:
    """`base` with another number in the place of one that sizes are fixed to."""
    return tuple(
        tuple(
            new if flag and size == number else size
            for flag, size in zip(flags, shape, strict=True)
        )
        for flags, shape in zip(fixed, base, strict=True)
    )


def is_unchecked(captured: Capture) -> bool:
    """Whether a kernel in a program may read or write outside of inputs whose sizes do not fit."""
    return any(map(_is_unchecked_call, calls(captured.joint.graph)))


def points_unchecked(captured: Capture) -> bool:
    """Whether such a kernel takes integers, given or made, which say where it reads or writes.

    Those that another such kernel made (the seed of an attention) are its own affair.
    """
    return any(
        is_index(value)
        for call in calls(captured.joint.graph)
        if _is_unchecked_call(call)
        for node in call.all_input_nodes
        if not _is_made_unchecked(node) and isinstance(value := held_value(node), Tensor)
    )


def points_by_numbers(captured: Capture) -> bool:
    """Whether a kernel that does not check them takes places in memory that are computed.

    From numbers that are not finite, or are larger than those of the example, it may read or write
    outside of its tensors.
    """
    numbers = {node for node in captured.joint.inputs if _is_number(node.meta["val"])}
    for call in calls(captured.joint.graph):
        if any(part in op_name(call) for part in BY_NUMBERS):
            return True
        made = [n for n in call.all_input_nodes if isinstance(held_value(n), Tensor)]
        places = [n for n in made if is_index(held_value(n)) and not _is_made_unchecked(n)]
        if _is_unchecked_call(call) and not numbers.isdisjoint(ancestors(places)):
            return True
    return False


def _is_unchecked_call(node: fx.Node) -> bool:
    return is_opaque(node) or any(part in op_name(node) for part in UNCHECKED)


def _is_made_unchecked(node: fx.Node) -> bool:
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return node.op == "call_function" and _is_unchecked_call(node)


def _resized(captured: Capture, grow: Callable[[int], int], base: Shapes | None = None) -> Shapes:
    """The shapes of the arguments with other sizes, starting from `base` if that is not the own."""
    shapes = [node.meta["val"].shape for node in captured.joint.inputs]
    count = captured.argument_count
    if base is None:
        return tuple(with_other_sizes(shapes[:count], shapes[count:], grow))
    own = [numbers_of(shape) for shape in shapes[:count]]
    known = dict(zip(itertools.chain(*own), itertools.chain(*base), strict=True))
    return tuple(with_other_sizes(shapes[:count], shapes[count:], lambda n: grow(known.get(n, n))))


def _elements(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes)
