"""As written: the same outputs and gradients, first and second order, as the program as written."""

from collections.abc import Iterator

import torch
from torch.utils import _pytree as pytree

from pullback.errors import GroupingError


def derivatives_of(run, args, *, holds=True):
    """Outputs, first derivatives alone and as recorded, and second ones, of `run` at `args`.

    The inputs are intermediates. Unless this `holds` them, they are gone when `run` is over: a
    Function that saves intermediates alone has then no second derivative, and a node still has.
    """
    leaves = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    given = [_passed(x) for x in args]
    returned = run(*given)
    if not holds:
        given.clear()
    tensors = [y for y in pytree.tree_leaves(returned) if isinstance(y, torch.Tensor)]
    linked = [y for y in tensors if y.requires_grad]
    generator = torch.Generator().manual_seed(1)

    def like(y):
        return torch.randn(y.shape, dtype=y.dtype, generator=generator)

    cotangents = [like(y).requires_grad_() for y in linked]
    fixed = [c.detach() for c in cotangents]
    plain = torch.autograd.grad(linked, leaves, fixed, retain_graph=True, allow_unused=True)
    first = torch.autograd.grad(linked, leaves, cotangents, create_graph=True, allow_unused=True)
    found = [g for g in first if g is not None and g.requires_grad]
    weights = [like(g) for g in found]
    asked = [*leaves, *cotangents]
    second = [None] * len(asked)
    if found:
        second = torch.autograd.grad(found, asked, weights, allow_unused=True)
    zeros = [torch.zeros_like(x) if g is None else g for x, g in zip(asked, second, strict=True)]
    values = [y if not isinstance(y, torch.Tensor) else y.detach() for y in [*tensors, *zeros]]
    return pytree.tree_structure(returned), values[: len(tensors)], [*plain, *first], zeros


def _passed(value):
    return value * 1 if isinstance(value, torch.Tensor) and value.requires_grad else value


def assert_same(got, expected, *, rtol=1e-12):
    """Require two rows of derivatives to agree, and the same gradients to be None."""
    assert got[0] == expected[0]
    for a, b in zip(got[1], expected[1], strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol / 100)
    assert [g is None for g in got[2]] == [g is None for g in expected[2]]
    for a, b in zip([*got[2], *got[3]], [*expected[2], *expected[3]], strict=True):
        if a is not None:
            torch.testing.assert_close(a, b, rtol=100 * rtol, atol=rtol)


# ---- groupings ----


def intervals(count: int) -> Iterator[list[tuple[int, ...]]]:
    """Every way to cut the row 0, 1, ... into consecutive groups."""
    if count == 0:
        yield []
    for size in range(1, count + 1):
        for rest in intervals(count - size):
            first = count - size
            yield [*rest, tuple(range(first, count))]


def partitions(numbers: list[int]) -> Iterator[list[tuple[int, ...]]]:
    """Every partition of `numbers`."""
    if not numbers:
        yield []
        return
    first, *rest = numbers
    for partition in partitions(rest):
        yield [(first,), *partition]
        for place, group in enumerate(partition):
            yield [*partition[:place], (first, *group), *partition[place + 1 :]]


def is_possible(groups_of, program, groups) -> bool:
    """Whether the groups can run one after the other."""
    try:
        groups_of(program, groups)
    except GroupingError:
        return False
    return True
