"""Pieces: parts of a tensor that are put into zeros, joined to complex numbers, or split again."""

from __future__ import annotations

from collections.abc import Iterator
from operator import getitem
from typing import Any

from torch import fx

from pullback.graph.cost import op_name
from pullback.graph.parts import BACKWARD, phase_of
from pullback.graph.rewrite import Table, rule
from pullback.graph.simplify.numbers import ZEROS
from pullback.graph.simplify.zeros import PUT, terms_by_place, tiled
from pullback.graph.values import Value, aten, same, tensor_of


@rule("selections-put", aten.add.Tensor, why=PUT)
def selections_put(node: Value) -> Any:
    """put(a, 0) + put(b, 1) -> zeros with a at 0 and b at 1, where there may be more places"""
    puts = [put for arg in node.node.args for put in _puts(arg)]
    dims = {dim for _, dim, _ in puts}
    places = [place for _, _, place in puts]
    if len(dims) != 1 or None in places or len(set(places)) < len(places) or node.kwargs:
        return None
    dim = dims.pop()
    if isinstance(node.val.shape[dim], int):
        return None
    first: Any = node.maker.wrap(puts[0][0])
    filled = first.new_zeros(_full_sizes(node))
    for part, _, place in sorted(puts, key=lambda put: put[2]):
        filled = filled.made(aten.select_scatter.default, node.maker.wrap(part), dim, place)
    return filled


def _puts(arg: Any) -> Iterator[tuple[Any, Any, Any]]:
    """What is put where into zeros: the part, the dimension and the place; None if unknown."""
    if not isinstance(arg, fx.Node) or len(arg.users) != 1:
        yield None, None, None
    elif arg.target == aten.select_backward.default:
        part, _, dim, place = arg.args
        yield part, dim, place if isinstance(place, int) and place >= 0 else None
    elif arg.target == aten.select_scatter.default:
        base, part, dim, place = arg.args
        yield part, dim, place
        yield from () if op_name(base) in ZEROS else _puts(base)  # type: ignore[arg-type]
    else:
        yield None, None, None


def _full_sizes(node: Value) -> Any:
    """The sizes of a sum of selections, from one of them."""
    for arg in node.node.args:
        while isinstance(arg, fx.Node) and arg.target == aten.select_scatter.default:
            arg = arg.args[0]
        if isinstance(arg, fx.Node) and arg.target == aten.select_backward.default:
            return node.maker.wrap(arg.args[1])
    return node.val.shape


@rule(
    "complex-parts-added",
    aten.add.Tensor,
    why="complex numbers are added part by part",
)
def complex_parts_added(node: Value) -> Any:
    """view_as_complex(a) + view_as_complex(b) -> view_as_complex(a + b)"""
    if node.kwargs or not all(_is_made_of_parts(arg) for arg in node.args):
        return None
    left, right = (arg.args[0] for arg in node.args)
    return (left + right).made(aten.view_as_complex.default)


def _is_made_of_parts(arg: Any) -> bool:
    is_made = isinstance(arg, Value) and arg.target == aten.view_as_complex.default
    return is_made and arg.is_used_once


@rule(
    "complex-from-parts",
    aten.view_as_complex.default,
    why="both put real and imaginary parts side by side",
)
def complex_from_parts(node: Value) -> Any:
    """view_as_complex(stack([a, b], -1)) -> complex(a, b)"""
    stack = node.args[0]
    if stack.target != aten.stack.default or stack.args[1] not in (-1, stack.dim() - 1):
        return None
    made = node.maker.call(aten.complex.default, *stack.args[0])
    if node.val.is_contiguous():
        made.node.meta["val"] = node.val  # `complex` gives no symbols
    return made


# ---- what was joined, taken apart ----


@rule(
    "slices-split",
    aten.slice.Tensor,
    why="slices that cover a dimension one after the other are the parts of a split",
)
def slices_split(node: Value) -> Any:
    """g[:, :3] and g[:, 3:] -> g.split([3, 2], 1), in backward"""
    if len(node.node.args) != 4:  # without both ends, or with a step
        return None
    source: Any = node.node.args[0]
    dim: Any = node.node.args[1]
    if phase_of(node.node) != BACKWARD or tensor_of(source) is None:
        return None
    slices = [user for user in source.users if _is_slice_along(user, dim)]
    slots = terms_by_place(slices, 2)
    size = source.meta["val"].shape[dim]
    order = tiled(slots, size, dim)
    if order is None or len(order) < 2:
        return None
    lengths = [slots[slot][0].meta["val"].shape[dim] for slot in order]
    are_numbers = all(isinstance(length, int) for length in lengths)
    if not are_numbers and not _is_halved(lengths, size):
        return None
    first: Any = order[0][1]
    first = first if isinstance(first, int) else node.maker.wrap(first)
    op = aten.split_with_sizes.default if are_numbers else aten.split.Tensor
    sizes = lengths if are_numbers else first
    parts = node.maker.wrap(source).made(op, sizes, dim)
    return node.maker.call(getitem, parts, order.index(tuple(node.node.args[2:4])))


def _is_slice_along(node: fx.Node, dim: Any) -> bool:
    is_plain = node.target == aten.slice.Tensor and len(node.args) == 4 and node.args[1] == dim
    return is_plain and phase_of(node) == BACKWARD


def _is_halved(lengths: list[Any], size: Any) -> bool:
    """Whether lengths are those that `chunk` makes of a size."""
    count = len(lengths)
    return all(same(length, (size + count - 1) // count) for length in lengths[:-1])


TABLE: Table = (selections_put, complex_parts_added, complex_from_parts, slices_split)
