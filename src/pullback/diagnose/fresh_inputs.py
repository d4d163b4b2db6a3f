"""Fresh inputs like given ones: other values of the same kind, and other sizes that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from torch import Tensor

from pullback.capture import seeds
from pullback.capture.fake import is_open, numbers_of, size_with
from pullback.capture.indices import is_index
from pullback.capture.joint import Capture
from pullback.capture.seeds import like_given, normal
from pullback.function.gradients import is_differentiable
from pullback.judge.trial_sizes import shapes_around_integers
from pullback.judge.unchecked_kernels import is_unchecked

Shapes = list[tuple[int, ...]]

# ---- values ----


def moved(tensor: Tensor, seed: int) -> Tensor:
    """`tensor` with each element moved a little: what was valid stays valid.

    A tensor of zeros says nothing about what is valid, and becomes one of normal numbers.
    """
    is_blank = is_differentiable(tensor) and not bool(tensor.any())
    return normal(tensor, seed) if is_blank else seeds.moved_a_little(tensor, seed)


def drawn_anew(tensor: Tensor, shape: Sequence[int], seed: int) -> Tensor:
    """A tensor of some shape, its elements drawn from those of `tensor` and moved a little.

    Integers stay what they are.
    """
    return moved(like_given(tensor, shape, seed), seed)


# ---- sizes ----


def shapes_resized(
    captured: Capture, own: Sequence[Tensor], resize: Callable[[int], int]
) -> Shapes | None:
    """The shapes of the arguments with other sizes, as far as they are free; None if none is.

    Integers keep their shape, and nothing becomes smaller that they may point into.
    """
    shapes = shapes_around_integers(captured, own, resize)
    before = [tuple(tensor.shape) for tensor in own]
    if any(map(is_index, own)) and any(
        new < old
        for a, b in zip(shapes, before, strict=True)
        for new, old in zip(a, b, strict=True)
    ):
        return None
    return shapes if shapes != before else None


def unlike_shapes(captured: Capture, own: Sequence[Tensor]) -> Shapes | None:
    """The shapes of the arguments, without sizes that are equal by chance; None if there are none.

    With square examples alone, the numbers of rows and of columns cannot be distinguished. Sizes
    that must be equal are one symbol of the capture. Integers keep their shape.
    """
    if is_unchecked(captured):
        return None
    rows = [node.meta["val"].shape for node in captured.joint.inputs[: len(own)]]
    shapes = before = [tuple(tensor.shape) for tensor in own]
    pairs = zip(chain(*rows), chain(*before), strict=True)
    numbers = {s.node.expr: n for s, n in pairs if is_open(s) and s.node.expr.is_Symbol}
    pointing = [row for tensor, row in zip(own, rows, strict=True) if is_index(tensor)]
    fixed = {size.node.expr for size in chain(*pointing) if is_open(size)}
    for symbol in [one for one in numbers if one not in fixed]:
        unlike = {**numbers, symbol: max(chain(*shapes)) + 1}
        wish = [tuple(size_with(size, unlike) for size in row) for row in rows]
        changed = sum(a != b for a, b in zip(chain(*shapes), chain(*wish), strict=True))
        is_alike = [*chain(*shapes)].count(numbers[symbol]) > changed
        blank = [t.new_zeros(shape) for t, shape in zip(own, wish, strict=True)]
        if is_alike and captured.serves(blank):
            numbers, shapes = unlike, wish
    return shapes if shapes != before else None


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
