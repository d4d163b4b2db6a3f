"""Examples with other numbers, switches and masks beside the differentiable inputs."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from pullback.capture.indices import is_index
from pullback.check.inputs.others import is_constant, unequal_numbers
from pullback.check.inputs.values import is_mask
from pullback.judge.example import Example, can_differ, tensors_in

REDUCTIONS = ("mean", "sum", "none")
# Numbers whose name says that either sign makes sense.
SIGNED = ("slope", "negative_slope", "scale", "factor", "shift", "offset", "bias", "gain")
UNSET = (0.1, 0.5)  # for a number of 0, which may mean that something is switched off
DIMENSIONS = ("dim", "axis")
IGNORED = -100  # what PyTorch's losses take for "no label"
GROUPS = 2  # more than the example has
# Names of arguments, or of functions, in which an index tensor is an order by agreement.
ORDERS = ("perm", "order", "sort", "shuffl", "rank", "inverse")


class Variant(Enum):
    """What was done to an argument, where that says what a wrong gradient is."""

    EMPTY = "a mask, or a row of it, that is false everywhere"
    IGNORED = "some indices that stand for no label"
    NOTHING = "a number that is 0"
    PADDED = "some indices that are a number among the arguments"


def arguments_of(
    example: Example,
    names: tuple[str, ...],
    words: frozenset[str] = frozenset(),
    optional: frozenset[str] = frozenset(),
) -> Iterator[Example]:
    """Each argument that is no differentiable tensor in turn with other values.

    A word among them becomes another one out of `words`, which the code of forward has; a number
    that is `optional`, by its name, also None.
    """
    for i, arg in enumerate(example.args):
        if isinstance(arg, Tensor):
            if i in example.needs or not arg.numel():
                continue
            if is_mask(arg):
                yield example.put(i, _mask(arg), f"`{names[i]}` with some entries 0")
            elif can_differ(arg) and is_constant(arg):
                label = f"`{names[i]}` with different entries"
                yield example.put(i, unequal_numbers(arg), label)
            continue
        others = list(_others(arg, names[i], example, words))
        if names[i] in optional and isinstance(arg, int | float):
            others.append(None)
        for value in others:
            kind = Variant.NOTHING if value == 0 and value is not False else None
            yield example.put(i, value, f"`{names[i]}` as {value!r}", kind)


def _others(arg: Any, name: str, example: Example, words: frozenset[str]) -> Iterator[Any]:
    if isinstance(arg, bool):
        yield not arg
    elif isinstance(arg, int):
        if name in DIMENSIONS:
            rank = max((example.args[i].dim() for i in example.tensors), default=0)
            yield from (d for d in range(-rank, rank) if d != arg)
        elif arg < 0:
            yield from _indices_in(example)  # a negative index may stand for none
        elif arg > 0:
            yield from sorted({v for v in (arg - 1, arg // 2, arg + 1, 2 * arg) if 0 < v != arg})
    elif isinstance(arg, float):
        yield from (arg / 2, arg * 2, 0.0) if arg else UNSET
        if name in SIGNED and arg > 0:
            yield -arg
    elif isinstance(arg, str) and (arg in REDUCTIONS or arg in words):
        known = dict.fromkeys([*(REDUCTIONS if arg in REDUCTIONS else ()), *sorted(words)])
        yield from (word for word in known if word != arg)


def _indices_in(example: Example) -> Iterator[int]:
    """An index that occurs among the arguments, if any does."""
    for i in example.tensors:
        index = example.args[i]
        if is_index(index) and index.numel() and int(index.min()) >= 0:
            yield int(index.flatten().mode().values)
            return


def _mask(tensor: Tensor) -> Tensor:
    """Two of three entries as 1 or true, the first one among them."""
    flat = torch.arange(tensor.numel(), device=tensor.device) % 3 != 1
    return flat.reshape(tensor.shape).to(tensor.dtype)


def masks_of(example: Example, names: tuple[str, ...]) -> Iterator[Example]:
    """Each boolean input in turn all false, all true, true in some entries, and false in a row."""
    for i in example.tensors:
        mask = example.args[i]
        if mask.dtype != torch.bool or not mask.numel():
            continue
        for value in (False, True):
            kind = None if value else Variant.EMPTY
            yield example.put(i, torch.full_like(mask, value), f"`{names[i]}` all {value}", kind)
        yield example.put(i, _mask(mask), f"`{names[i]}` with some entries False")
        if mask.dim() > 1:
            row = mask.clone()
            row.select(0, 0).fill_(False)
            yield example.put(i, row, f"`{names[i]}` with a row of False", Variant.EMPTY)


def indices_of(example: Example, names: tuple[str, ...] = (), title: str = "") -> Iterator[Example]:
    """Index tensors with every index down to 0, with neighbours equal, all the same, or ignored.

    Orders stay orders where the name of the argument, or the title of the function, speaks of one;
    without names, all of them do.
    """
    for i in example.tensors:
        index = example.args[i]
        if not is_index(index) or index.numel() < 2 or int(index.min()) < 0:
            continue
        top = int(index.max())
        if index.dtype.is_signed and _sizes_below(example, -IGNORED):
            flat = torch.arange(index.numel()) % 3 == 1
            some = index.masked_fill(flat.reshape(index.shape).to(index.device), IGNORED)
            label = f"argument {i} with some entries {IGNORED}, to be ignored"
            yield example.put(i, some, label, Variant.IGNORED)
        yield from _padded(example, i, top)
        yield from _regrouped(example, i, top)
        if is_order(example, i, names, title):
            continue  # an order of all elements: repeating one is no order any more
        free = [n for n in range(top + 1) if n not in _apart(example, index)]
        cycle = torch.tensor(free)[torch.arange(index.numel()) % len(free)]
        spread = cycle.reshape(index.shape).to(index)
        yield example.put(i, spread, f"argument {i} with indices from 0 to {top}")
        yield example.put(i, torch.full_like(index, top), f"argument {i} with one index only")
        places = torch.arange(index.numel(), device=index.device) // 2 * 2
        pairs = index.flatten()[places].reshape(index.shape)
        yield example.put(i, pairs, f"argument {i} with each index twice")


def _apart(example: Example, index: Tensor) -> list[int]:
    """Numbers among the arguments that no index is: such as the blank, or what stands for none."""
    numbers = [arg for arg in example.args if type(arg) is int]
    return [number for number in numbers if not bool((index == number).any())]


def _padded(example: Example, i: int, top: int) -> Iterator[Example]:
    """Some entries as a number among the arguments that is an index, too: that of the padding."""
    index = example.args[i]
    numbers = [arg for arg in example.args if type(arg) is int and 0 <= arg <= top]
    for number in dict.fromkeys(numbers):
        if not bool((index == number).any()):
            flat = torch.arange(index.numel()) % 3 == 1
            some = index.masked_fill(flat.reshape(index.shape).to(index.device), number)
            label = f"argument {i} with some entries {number}, which is an argument"
            yield example.put(i, some, label, Variant.PADDED)


def _regrouped(example: Example, i: int, top: int) -> Iterator[Example]:
    """The entries in more groups, where one argument is the number of those and no size is."""
    counts = [k for k, arg in enumerate(example.args) if type(arg) is int and arg == top + 1]
    if len(counts) != 1 or any(top + 1 in example.args[k].shape for k in example.tensors):
        return
    index, groups = example.args[i], top + 1 + GROUPS
    spread = (torch.arange(index.numel()) % groups).reshape(index.shape).to(index)
    yield example.put(counts[0], groups, "").put(i, spread, f"argument {i} in {groups} groups")


def _sizes_below(example: Example, limit: int) -> bool:
    """Whether a negative index of that size counts nothing from the end."""
    return all(size < limit for t in tensors_in(example.args) for size in t.shape)


def is_order(example: Example, i: int, names: tuple[str, ...] = (), title: str = "") -> bool:
    """Whether an index tensor is an order, and is called one where there are names."""
    is_called = not names or _is_called_order(names[i], title)
    return is_called and _is_order(example.args[i], example)


def _is_called_order(name: str, title: str) -> bool:
    """Whether the name of an argument or of its function speaks of an order."""
    return name == "p" or any(word in text.lower() for word in ORDERS for text in (name, title))


def _is_order(index: Tensor, example: Example) -> bool:
    """Whether an index tensor, along a dimension, holds each number below a size once."""
    for dim in range(index.dim()):
        size = index.shape[dim]
        want = torch.arange(size, dtype=index.dtype, device=index.device)
        if size > 1 and bool((index.sort(dim).values.movedim(dim, -1) == want).all()):
            others = [example.args[i] for i in example.tensors if example.args[i] is not index]
            if any(size in other.shape for other in others):
                return True
    return False


def doubled(example: Example) -> Iterator[tuple[int, int, Example, Example]]:
    """One tensor in two slots, and the same with equal copies in the slots.

    A slot may hold a tensor of another size, so long as it is of the same rank.
    """
    tied = {tie.position for tie in example.ties}  # each of these is a parameter of its own
    free = [i for i in example.differentiable if i not in tied]
    for k, i in enumerate(free):
        for j in free[k + 1 :]:
            one, two = example.args[i], example.args[j]
            if one.dim() != two.dim() or one.dtype != two.dtype:
                continue
            label = f"one tensor in slots {i} and {j}"
            needs = example.needs | {i, j}
            same = example.put(j, one, label).need(needs, label)
            yield i, j, same, example.put(j, one.clone(), "equal copies").need(needs)
