"""Fresh inputs like given ones: other values of the same kind, and other sizes that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from pullback.capture import seeds
from pullback.capture.fake import numbers_of, with_other_sizes
from pullback.capture.indices import is_index
from pullback.capture.joint import Capture
from pullback.capture.seeds import like_given, normal
from pullback.derive.trial_rows import is_unchecked
from pullback.function.gradients import is_differentiable

Shapes = list[tuple[int, ...]]

# ---- values ----


def near(tensor: Tensor, seed: int) -> Tensor:
    """`tensor` with each element moved a little: what was valid stays valid.

    A tensor of zeros says nothing about what is valid, and becomes one of normal numbers.
    """
    is_blank = is_differentiable(tensor) and not bool(tensor.any())
    return normal(tensor, seed) if is_blank else seeds.moved_a_little(tensor, seed)


def drawn(tensor: Tensor, shape: Sequence[int], seed: int) -> Tensor:
    """A tensor of some shape, its elements drawn from those of `tensor` and moved a little.

    Integers stay what they are.
    """
    return near(like_given(tensor, shape, seed), seed)


# ---- sizes ----


def other_shapes(
    captured: Capture, own: Sequence[Tensor], resize: Callable[[int], int]
) -> Shapes | None:
    """The shapes of the arguments with other sizes, as far as they are free; None if none is.

    Integers keep their shape, and nothing becomes smaller that they may point into.
    """
    values = [node.meta["val"].shape for node in captured.joint.inputs]
    pairs = list(zip(own, values, strict=False))
    pointing = [shape for tensor, shape in pairs if is_index(tensor)]
    shapes = with_other_sizes(values[: len(own)], [*values[len(own) :], *pointing], resize)
    before = [tuple(tensor.shape) for tensor in own]
    if pointing and any(
        new < old
        for a, b in zip(shapes, before, strict=True)
        for new, old in zip(a, b, strict=True)
    ):
        return None
    return shapes if shapes != before else None


def unlike_shapes(captured: Capture, own: Sequence[Tensor]) -> Shapes | None:
    """The shapes of the arguments, with sizes apart that are equal by chance; None if there are
    none.

    Of square examples alone nobody can tell the number of rows from that of columns.
    """
    shapes = [tuple(tensor.shape) for tensor in own]
    if is_unchecked(captured):
        return None
    changed = False
    pointing = {i for i, tensor in enumerate(own) if is_index(tensor)}
    for step, spots in enumerate(_alike(shapes), start=1):
        wish = None if pointing & {i for i, _ in spots} else _grown(shapes, spots, step)
        if wish is not None and captured.serves(_blank(own, wish)):
            shapes, changed = wish, True
    return shapes if changed else None


Spot = tuple[int, int]
"""One size: the tensor it belongs to, and the dimension."""


def _alike(shapes: Shapes) -> Iterator[list[Spot]]:
    """Sizes to move away from others that they equal: each by itself, then by dimension."""
    spots = [(i, d) for i, shape in enumerate(shapes) for d in range(len(shape))]
    sizes = [shapes[i][d] for i, d in spots]
    alike = [spot for spot, size in zip(spots, sizes, strict=True) if sizes.count(size) > 1]
    yield from ([spot] for spot in alike)
    for end in sorted({d - len(shapes[i]) for i, d in alike}):
        yield [(i, d) for i, d in alike if d - len(shapes[i]) == end]


def _grown(shapes: Shapes, spots: Sequence[Spot], step: int) -> Shapes | None:
    """`shapes` with some sizes larger; None if these are no longer equal to any other."""
    taken = {size for shape in shapes for size in shape}
    olds = {shapes[i][d] for i, d in spots}
    count = sum(shape.count(old) for shape in shapes for old in olds)
    if len(olds) != 1 or count <= len(spots):
        return None
    new = max(taken) + step
    rows = [list(shape) for shape in shapes]
    for i, d in spots:
        rows[i][d] = new
    return [tuple(row) for row in rows]


def _blank(own: Sequence[Tensor], shapes: Shapes) -> list[Tensor]:
    return [tensor.new_zeros(shape) for tensor, shape in zip(own, shapes, strict=True)]


def small_sizes(captured: Capture) -> Iterator[Callable[[int], int]]:
    """Ways to make large sizes small: as different as they are, and as divisible."""
    values = [node.meta["val"].shape for node in captured.joint.inputs]
    large = sorted({size for shape in values for size in numbers_of(shape) if size > 8})
    yield lambda size: 9 + large.index(size) if size in large else size
    yield _halved


def _halved(size: int) -> int:
    """A size halved until it is small or odd, which keeps what divides it in two."""
    while size > 8 and size % 2 == 0:
        size //= 2
    return size
