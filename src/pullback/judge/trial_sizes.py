"""The sizes that are tried besides those of the example: larger, smaller, special, and unlikely.

What a capture ties together stays equal; then again one size alone is another, which the capture
does not serve: a text takes what it is given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from pullback.capture.fake import is_open, numbers_of, with_other_sizes
from pullback.capture.indices import is_index
from pullback.capture.joint import Capture
from pullback.judge.unchecked_kernels import is_unchecked

Shapes = tuple[tuple[int, ...], ...]

SIZES = 16
"""Rows of other sizes of a kind that are tried: each costs a run of the program and of the text."""


def other_shapes(captured: Capture, base: Shapes) -> Iterator[tuple[Shapes, bool]]:
    """Rows of other shapes than `base`, each once, and whether it is an unlikely one."""
    seen = {base}
    for kind in (_grown, _renumbered, _alone, _parted):
        for shapes in itertools.islice(kind(captured, base), SIZES):
            if shapes not in seen:
                seen.add(shapes)
                yield shapes, kind is _parted


def _grown(captured: Capture, base: Shapes) -> Iterator[Shapes]:
    """Shapes with other sizes, in which what was equal stays so."""
    numbers = {size for shape in base for size in shape}
    yield resized_shapes(captured, lambda n: n + 1, base)
    yield resized_shapes(captured, lambda n: 2 * n, base)
    for old, new in ((1, 2), (1, 5), (0, 3)):
        yield tuple(tuple(new if size == old else size for size in shape) for shape in base)
    for other in (lambda n: n + 1, lambda n: 1, lambda n: 2 * n, lambda n: 3 * n + 1):
        for number in sorted(numbers):
            yield resized_shapes(captured, lambda n, m=number, f=other: f(n) if n == m else n, base)  # type: ignore[misc]


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
        for new in (number + 1, 2 * number, 3 * number + 1, 1):
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


def resized_shapes(
    captured: Capture, grow: Callable[[int], int], base: Shapes | None = None
) -> Shapes:
    """The shapes of the arguments with other sizes, starting from `base` if that is not the own."""
    shapes = [node.meta["val"].shape for node in captured.joint.inputs]
    count = captured.argument_count
    if base is None:
        return tuple(with_other_sizes(shapes[:count], shapes[count:], grow))
    own = [numbers_of(shape) for shape in shapes[:count]]
    known = dict(zip(itertools.chain(*own), itertools.chain(*base), strict=True))
    return tuple(with_other_sizes(shapes[:count], shapes[count:], lambda n: grow(known.get(n, n))))


def shapes_around_integers(
    captured: Capture, own: Sequence[Tensor], grow: Callable[[int], int]
) -> list[tuple[int, ...]]:
    """The shapes of the arguments `own` with other sizes; integers keep their shape.

    So do the sizes that are tied to theirs.
    """
    values = [node.meta["val"].shape for node in captured.joint.inputs]
    arguments, held = values[: len(own)], values[len(own) :]
    pointing = [shape for shape, t in zip(arguments, own, strict=True) if is_index(t)]
    return with_other_sizes(arguments, [*held, *pointing], grow)


def elements_of(shapes: Sequence[Sequence[int]]) -> int:
    """How many elements tensors of these shapes have together."""
    return sum(math.prod(shape) for shape in shapes)


def shown_shapes(shapes: Shapes) -> str:
    """Inputs of such shapes, in words."""
    return "inputs of shape " + ", ".join(str(list(shape)) for shape in shapes)
