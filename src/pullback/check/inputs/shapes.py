"""Examples with other sizes and ranks.

Each distinct size in the example is a symbol: equal sizes change together, and so do integer
arguments, lists of lengths and index tensors that follow a size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.indices import is_index
from pullback.check.inputs.values import resampled
from pullback.judge.example import Example, can_differ, mapped, tensors_in

Place = tuple[int, int]  # the number of a tensor among all of the example, and its dimension

SIZES = (1, 2, 3, 8, 33, 65)
BLOCKS = (31, 129, 257, 1025)
BATCHES = (1, 2, 7, 40, 130)
EQUAL = 3
ELEMENTS = 20_000
LARGE = 400  # elements of an example, beyond which a smaller one is tried


def symbols_of(example: Example) -> tuple[int, ...]:
    """The distinct sizes, in the order in which they appear."""
    found: dict[int, None] = {}
    for tensor in tensors_in(example.args):
        sizes = (
            size for dim, size in enumerate(tensor.shape) if _varies(tensor, dim, (0, 0), None)
        )
        found.update(dict.fromkeys(sizes))
    return tuple(found)


def resized(
    example: Example,
    sizes: dict[int, int],
    label: str,
    *,
    only: frozenset[Place] | None = None,
    follow: bool = True,
) -> Example:
    """The example with each size renamed, and what follows a size changed along.

    With `only`, just these dimensions of these tensors change. With `follow`, integer arguments
    equal to a size change with it.
    """
    tensors = tensors_in(example.args)
    batched = {example.args[i].shape for i in example.needs}
    shapes: dict[int, tuple[int, ...]] = {}
    for number, tensor in enumerate(tensors):
        # One filter is no batch of one, though both lead with 1.
        is_filter = only is None and tensor.shape not in batched and tensor.shape[:1] == (1,)
        shapes[number] = tuple(
            sizes.get(size, size)
            if _varies(tensor, dim, (number, dim), only) and not (dim == 0 and is_filter)
            else size
            for dim, size in enumerate(tensor.shape)
        )
    counter = iter(range(len(tensors)))

    def renewed(tensor: Tensor) -> Tensor:
        number = next(counter)
        return _renewed(tensor, shapes[number], 100 + number, tensors, sizes)

    args = tuple(mapped(arg, renewed) for arg in example.args)
    if follow:
        args = tuple(_followed(arg, sizes) for arg in args)
    return replace(example, args=args, label=label)


def _varies(tensor: Tensor, dim: int, place: Place, only: frozenset[Place] | None) -> bool:
    """Whether a dimension may change; a 1 that does not lead is there to broadcast, and stays."""
    if only is not None:
        return place in only
    return tensor.shape[dim] != 1 or (dim == 0 and tensor.dim() > 1)


def _renewed(
    tensor: Tensor, shape: tuple[int, ...], draw: int, others: list[Tensor], sizes: dict[int, int]
) -> Tensor:
    if not is_index(tensor):
        if tuple(tensor.shape) == shape:
            return tensor
        return resampled(tensor, shape, draw)
    if tensor.numel() == 0:
        return tensor.new_zeros(shape)
    total = int(tensor.sum())
    if tensor.dim() == 1 and total in sizes and int(tensor.min()) >= 0 and total > tensor.numel():
        return tensor.new_tensor(shares(sizes[total], shape[0], tensor.tolist()))
    top = int(tensor.max())
    bound = bound_of(tensor, others, sizes)
    if tuple(tensor.shape) == shape and (bound is None or top < bound):
        return tensor
    return resampled(tensor, shape, draw, None if bound is None else min(bound, top + 1))


def bound_of(tensor: Tensor, others: list[Tensor], sizes: dict[int, int]) -> int | None:
    """The least new size among those that an index tensor may count: it stays below each."""
    top = int(tensor.max())
    sized = [s for other in others if other is not tensor for s in other.shape if s > top]
    return min((sizes.get(s, s) for s in sized), default=None)


def _followed(arg: Any, sizes: dict[int, int]) -> Any:
    if isinstance(arg, bool):
        return arg
    if isinstance(arg, int):
        return sizes.get(arg, arg) if arg > 2 else arg
    if isinstance(arg, (list, tuple)) and arg and all(type(item) is int for item in arg):
        total = sum(arg)
        if total in sizes and min(arg) >= 0 and total > len(arg):
            return type(arg)(shares(sizes[total], len(arg), list(arg)))
        return type(arg)(sizes.get(item, item) if item > 2 else item for item in arg)
    return arg


def shares(total: int, count: int, old: list[int]) -> list[int]:
    """`count` lengths that sum to `total`, in about the old proportions."""
    if count == 0:
        return []
    weights = [old[i % len(old)] for i in range(count)] if old else [1] * count
    whole = sum(weights) or 1
    parts = [total * w // whole for w in weights]
    parts[0] += total - sum(parts)
    return parts


# ---- which sizes to try ----


def sizes_of(example: Example) -> Iterator[Example]:
    """Each size in turn as one of `SIZES`; then all at once; then equal sizes apart."""
    symbols = symbols_of(example)
    inner = symbols[1:] if len(symbols) > 1 else symbols
    for new in SIZES:
        for symbol in inner if new > 1 else symbols:
            if new != symbol and fits(example, {symbol: new}):
                yield from both_ways(example, {symbol: new}, f"size {symbol} as {new}")
    if len(symbols) > 1:
        for new in (1, 33):
            sizes = dict.fromkeys(symbols, new)
            if fits(example, sizes):
                yield from both_ways(example, sizes, f"every size as {new}")
    yield from untied(example)
    yield from loosened(example)


def blocks_of(example: Example) -> Iterator[Example]:
    """Each size in turn next to a power of two, where kernels have their last block."""
    for new in BLOCKS:
        for symbol in symbols_of(example):
            if new != symbol and fits(example, {symbol: new}):
                yield from both_ways(example, {symbol: new}, f"size {symbol} as {new}")


def untied(example: Example) -> Iterator[Example]:
    """Sizes that are equal within one tensor, as different ones: a square made oblong."""
    tensors = tensors_in(example.args)
    for number, tensor in enumerate(tensors):
        shape = tuple(tensor.shape)
        for dim in range(1, len(shape)):
            size = shape[dim]
            if size in shape[:dim]:
                others = [
                    (n, d)
                    for n, other in enumerate(tensors)
                    for d, s in enumerate(other.shape)
                    if n != number and s == size
                ]
                label = f"dimension {dim} of size {size} as {size + 3}"
                alone = [] if _has_like(tensor, tensors) else [[(number, dim)]]
                for group in (*alone, [(number, dim), *others]):
                    yield resized(
                        example, {size: size + 3}, label, only=frozenset(group), follow=False
                    )


def _has_like(tensor: Tensor, tensors: list[Tensor]) -> bool:
    """Whether it goes by entry with another one, and so is not of another size alone."""
    return any(other.shape == tensor.shape for other in tensors if other is not tensor)


def loosened(example: Example) -> Iterator[Example]:
    """One tensor's share of a common size as twice that.

    What goes with indices or masks stays: rows without a label are no other size, but a mistake.
    """
    tensors = tensors_in(example.args)
    bound = {size for tensor in tensors if not can_differ(tensor) for size in tensor.shape}
    for number, tensor in enumerate(tensors):
        others = [other for other in tensors if other is not tensor]
        if tensor.dim() > 1 and _has_like(tensor, tensors):
            continue
        for dim, size in enumerate(tensor.shape):
            if size not in bound and any(size in other.shape for other in others):
                label = f"dimension {dim} of tensor {number} as {2 * size} in place of {size}"
                yield resized(
                    example, {size: 2 * size}, label, only=frozenset({(number, dim)}), follow=False
                )


def broadcast_of(example: Example) -> Iterator[tuple[Example, Example]]:
    """An input that seems to broadcast in another shape, and the same with all of it written out.

    A size of it as 1; and with as many dimensions as what it goes with: as a row, as a column.
    """
    for i in example.differentiable:
        tensor = example.args[i]
        others = [example.args[j] for j in example.tensors if j != i]
        over = [other.shape for other in others if _broadcasts(tensor, other)]
        if not over:
            continue
        for dim, size in enumerate(tensor.shape):
            if size > 1:
                one = tensor.narrow(dim, 0, 1).clone()
                label = f"dimension {dim} of argument {i} as 1 in place of {size}"
                yield (
                    example.put(i, one, label),
                    example.put(i, one.expand(tensor.shape).clone(), "written out"),
                )
        full = max(over, key=len)
        row = (*(1 for _ in full[: len(full) - tensor.dim()]), *tensor.shape)
        for shape in ((*full[:-1], 1), row):
            full_rank = resampled(tensor, shape, 400 + i)
            yield (
                example.put(i, full_rank, f"argument {i} with the shape {list(shape)}"),
                example.put(i, full_rank.expand(full).clone(), "written out"),
            )


def numbers_by_row(example: Example) -> Iterator[tuple[Example, list[Example]]]:
    """A tensor of one number as one for each row of the others, and each row with its own."""
    for i in example.differentiable:
        others = [j for j in example.tensors if j != i and example.args[j].dim() > 1]
        if example.args[i].numel() != 1 or not others:
            continue
        count, rank = example.args[others[0]].shape[0], example.args[others[0]].dim()
        if count < 2 or any(example.args[j].shape[0] != count for j in others):
            continue
        number = example.args[i].detach().flatten()
        column = number * (1 + 0.25 * torch.arange(count, device=number.device).to(number.dtype))
        label = f"argument {i} as one for each row"
        many = example.put(i, column.reshape((count,) + (1,) * (rank - 1)), label)
        rows = []
        for k in range(count):
            row = example.put(i, column[k].reshape(example.args[i].shape), label)
            for j in others:
                row = row.put(j, example.args[j][k : k + 1].clone(), label)
            rows.append(row)
        yield many, rows


def _broadcasts(tensor: Tensor, other: Tensor) -> bool:
    """Whether the shape of a tensor is the end of another's, so that it broadcasts over it."""
    rank = tensor.dim()
    return 0 < rank < other.dim() and tensor.shape == other.shape[-rank:]


def both_ways(example: Example, sizes: dict[int, int], label: str) -> Iterator[Example]:
    """The renaming, once with integer arguments that follow and once, if that differs, without."""
    first = resized(example, sizes, label)
    yield first
    if any(_has_changed(*pair) for pair in zip(first.args, example.args, strict=True)):
        yield resized(example, sizes, f"{label}, other arguments as given", follow=False)


def _has_changed(new: Any, old: Any) -> bool:
    """Whether an argument without tensors is another one."""
    return not tensors_in(new) and type(new) in (int, list, tuple) and new != old


def batches_of(example: Example) -> Iterator[Example]:
    """The leading size of the first tensor as others, a batch larger than any block among them."""
    leading = _leading(example)
    if leading is None:
        return
    for new in BATCHES:
        if new != leading and fits(example, {leading: new}):
            yield from both_ways(example, {leading: new}, f"batch of {new}")


def empty_of(example: Example) -> Iterator[Example]:
    """The leading size of the first tensor as 0: a batch without elements."""
    leading = _leading(example)
    if leading:
        yield resized(example, {leading: 0}, f"size {leading} as 0")


def oblong_of(example: Example) -> Iterator[Example]:
    """Images and stacks of three dimensions or more whose equal sizes are made different."""
    ranks = [tensor.dim() for tensor in tensors_in(example.args)]
    if min(ranks, default=0) > 2:
        yield from untied(example)


def many_of(example: Example, total: int = 100_000) -> Iterator[Example]:
    """One size so large that the largest input has about `total` elements, indices among them."""
    tensors = [example.args[i] for i in example.differentiable]
    if not tensors:
        return
    largest = max(tensors, key=lambda t: t.numel())
    if largest.numel() == 0:
        return
    for symbol in dict.fromkeys(largest.shape):
        power = largest.shape.count(symbol)
        rest = largest.numel() / symbol**power
        new = math.ceil((total / rest) ** (1 / power)) + 1
        if new > symbol and fits(example, {symbol: new}, 4 * total):
            yield from spread(example, {symbol: new}, f"size {symbol} as {new}")
            yield from both_ways(example, {symbol: new}, f"size {symbol} as {new}")


def spread(example: Example, sizes: dict[int, int], label: str) -> Iterator[Example]:
    """The renaming with indices from all over a size that has grown, where they count one."""
    made = resized(example, sizes, label)
    tensors = [example.args[i] for i in example.tensors]
    has_spread = False
    for i in made.tensors:
        old, index = example.args[i], made.args[i]
        if not is_index(old) or not old.numel() or not index.numel() or int(old.min()) < 0:
            continue
        bound = bound_of(old, tensors, sizes)
        if bound is not None and bound > int(old.max()) + 1 and int(old.sum()) not in sizes:
            has_spread = True
            made = made.put(i, resampled(old, index.shape, 500 + i, bound), label)
    if has_spread:
        yield made


def _leading(example: Example) -> int | None:
    for i in example.differentiable:
        if example.args[i].dim():
            return int(example.args[i].shape[0])
    return None


def fits(example: Example, sizes: dict[int, int], limit: int = ELEMENTS) -> bool:
    """Whether the tensors have at most `limit` elements together once the sizes are renamed."""
    shapes = [tensor.shape for tensor in tensors_in(example.args)]
    return sum(math.prod(sizes.get(size, size) for size in shape) for shape in shapes) <= limit


# ---- ranks ----


def ranks_of(example: Example) -> Iterator[Example]:
    """A leading dimension more, for all tensors or for the first; and for all with equal sizes.

    Index tensors stay as they are: a dimension more changes what they point at. Equal sizes let a
    transposition of the wrong dimensions pass unnoticed. Where an argument has a number for each
    dimension, such as the sizes of a grid, the rank is no other one.
    """
    # A number beside tensors stays one: what broadcasts with equal sizes is no rank of it.
    floats = tuple(i for i in example.differentiable if example.args[i].dim())
    floats = floats or example.differentiable
    if not floats or _has_numbers_by_dimension(example):
        return
    yield _grown(example, floats, 2, "a leading dimension of 2 more for every tensor")
    last = example.args[floats[0]].shape[-1:]
    if len(floats) == 1 and last and last[0] > 2:
        yield _grown(example, floats, last[0], "a leading dimension more, as large as the last one")
    if len(floats) > 1:
        yield _grown(example, floats[:1], 2, "a leading dimension of 2 more for the first tensor")
    sizes = dict.fromkeys(symbols_of(example), EQUAL)
    if len(sizes) > 1 and len(floats) > 1:
        equal = resized(example, sizes, "every size as 3")
        yield _grown(equal, floats, EQUAL, "a leading dimension more, and every size as 3")
    yield _grown(
        example, floats[:1], 3, "two leading dimensions more for the first tensor", twice=True
    )


def _has_numbers_by_dimension(example: Example) -> bool:
    """Whether a list has as many integers as the first tensor has dimensions behind its batch."""
    rank = example.args[example.differentiable[0]].dim()
    lists = [arg for arg in example.args if isinstance(arg, (list, tuple)) and len(arg) > 1]
    counts = {len(arg) for arg in lists if all(type(item) is int for item in arg)}
    return not counts.isdisjoint((rank - 2, rank - 1, rank))


def lower_ranks_of(example: Example) -> Iterator[Example]:
    """Without the leading dimension, for all tensors or for the first, and without any."""
    floats = example.differentiable
    deep = [i for i in floats if example.args[i].dim()]
    if not deep:
        return
    all_deep = [i for i in example.tensors if example.args[i].dim()]
    yield _shrunk(example, all_deep, "without the leading dimension")
    if len(all_deep) > 1:
        yield _shrunk(example, deep[:1], "without the leading dimension of the first tensor")
    if all(example.args[i].numel() for i in floats):
        zero = example
        for i in floats:
            zero = zero.put(i, example.args[i].flatten()[:1].reshape(()).clone(), "all 0-d")
        yield zero


def _grown(
    example: Example, positions: tuple[int, ...], size: int, label: str, *, twice: bool = False
) -> Example:
    for i in positions:
        old = example.args[i]
        shape = (2, size, *old.shape) if twice else (size, *old.shape)
        new = old.expand(shape).clone() if is_index(old) else resampled(old, shape, 300 + i)
        example = example.put(i, new, label)
    return example


def _shrunk(example: Example, positions: list[int], label: str) -> Example:
    for i in positions:
        old = example.args[i]
        if old.shape[0]:
            example = example.put(i, old[0].clone(), label)
    return example


# ---- smaller ----


def smaller_of(example: Example) -> Iterator[Example]:
    """Smaller examples of the same kind, smallest first, where the given one is large."""
    if example.size <= LARGE:
        return
    symbols = symbols_of(example)
    large = [s for s in symbols if s > 8]
    yield resized(example, {s: 3 + 2 * k for k, s in enumerate(large)}, example.label)
    for factor in (64, 16, 8, 4, 2):
        if any(s % factor == 0 and s > factor for s in large):
            sizes = {s: s // factor for s in large if s % factor == 0 and s // factor > 1}
            yield resized(example, sizes, example.label)
    for s in large:
        yield resized(example, {s: 8}, example.label)
