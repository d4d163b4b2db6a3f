"""Axes: the dimensions of a graph's tensors, told apart by what varies along them.

Every dimension of every value is a row of *axes*: none where its size is one, one for most, several
where a view has merged dimensions. Two dimensions that an op lines up are the same axis. A view
that splits a dimension splits its axis, everywhere.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

from pullback.errors import KernelError
from pullback.graph.cost import argument_of, expression_of, hint_of, is_random
from pullback.graph.values import aten, held_value, same, tensor_of
from pullback.triton_codegen.expressions import POWERS, TABLE, is_cast

Row = tuple["Axis", ...]


@dataclass(eq=False)
class Axis:
    """What varies along a dimension: its size, and what it turned out to be."""

    size: Any
    parts: Row | None = None

    def leaves(self) -> Iterator[Axis]:
        """The axes that it consists of, the outermost first."""
        if self.parts is None:
            yield self
        else:
            for part in self.parts:
                yield from part.leaves()

    def __repr__(self) -> str:
        return f"Axis({self.size})" if self.parts is None else f"Axis{self.parts}"


def leaves_of(row: Row) -> Row:
    """The axes of a dimension as they are known now."""
    return tuple(leaf for axis in row for leaf in axis.leaves())


# ---- ops by what they do to dimensions ----

VIEWS = (
    *(aten.view.default, aten.reshape.default, aten._unsafe_view.default),
    *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default),
    *(aten.expand.default, aten.permute.default, aten.transpose.int, aten.t.default),
    *(aten.alias.default, aten.detach.default, aten.clone.default, aten.contiguous.default),
    *(aten.expand_as.default, aten.view_as.default, aten.numpy_T.default),
)
"""Ops that give the same numbers in another shape, or in the same."""

REDUCTIONS: dict[Any, str] = {
    aten.sum.default: "sum",
    aten.sum.dim_IntList: "sum",
    aten.mean.default: "mean",
    aten.mean.dim: "mean",
    aten.amax.default: "max",
    aten.amin.default: "min",
    aten.max.default: "max",
    aten.min.default: "min",
    aten.linalg_vector_norm.default: "norm",
}
"""Ops that make one number of many, and how."""

CUTS = (
    *(aten.slice.Tensor, aten.select.int, aten.cat.default, aten.slice_backward.default),
    *(aten.select_backward.default, aten.constant_pad_nd.default, aten.flip.default),
    *(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int),
)
"""Ops that take a tensor apart, or put it together, along a dimension."""

PUTS = (aten.slice_scatter.default, aten.select_scatter.default)
"""Ops that put a tensor into another one, along a dimension."""

PICKS = (aten.gather.default, aten.index_select.default)
"""Ops that read at an index that is computed."""

SCATTERS = (aten.scatter.src, aten.scatter.value, aten.scatter_add.default)
"""Ops that put one element into each row, or add it. PyTorch takes an index of fewer rows as well;
kernels are for as many, and the host checks that."""

CREATED = (
    *(aten.full.default, aten.zeros.default, aten.ones.default, aten.scalar_tensor.default),
    *(aten.full_like.default, aten.zeros_like.default, aten.ones_like.default),
    *(aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.arange.default),
    *(aten.arange.start, aten.arange.start_step, torch.ops.prims.iota.default),
)
"""Ops that make a tensor of sizes and numbers alone."""


def _needs_numbers(node: fx.Node, *, is_whole: bool) -> bool:
    """Whether a reduction of no numbers would spoil what sums over other rows, or has no value."""
    kind = REDUCTIONS[node.target]
    if kind == "mean":
        return not is_whole
    return kind in ("max", "min") and not node.meta.get("is_shift")


def reduced_dims(node: fx.Node) -> list[int]:
    """The dimensions that a reduction sums over."""
    source = tensor_of(node.args[0])
    rank = source.dim() if source is not None else 0
    dims = argument_of(node, "dim")
    if dims is None or dims == []:
        return list(range(rank))
    listed = [dims] if isinstance(dims, int) else list(dims)
    return sorted(dim % rank if rank else 0 for dim in listed)


@dataclass(eq=False)
class Axes:
    """The axes of the values of one graph."""

    dims: dict[fx.Node, list[Row]] = field(default_factory=dict)
    bounds: list[tuple[Any, Any]] = field(default_factory=list)
    """Where parts lie within tensors: of each two sizes, the first is not larger."""

    @property
    def conditions(self) -> list[Any]:
        """What must hold of sizes: each dimension is as long as its axes, and parts lie inside."""
        bounds = [tuple(map(expression_of, pair)) for pair in self.bounds]
        pairs = [
            (expression_of(size), expression_of(math.prod([leaf.size for leaf in row])))
            for node in self.dims
            for size, row in zip(held_value(node).shape, self.of(node), strict=True)
        ]
        found = [sympy.Le(a, b, evaluate=False) for a, b in bounds]
        found += [sympy.Eq(a, b, evaluate=False) for a, b in pairs if a != b]
        return [one for one in dict.fromkeys(found) if one.free_symbols]

    def of(self, node: fx.Node) -> list[Row]:
        """The axes of each dimension of a value."""
        return [leaves_of(row) for row in self.dims[node]]

    def all_of(self, node: fx.Node) -> list[Axis]:
        """The axes of a value, in the order of its dimensions."""
        return [leaf for row in self.of(node) for leaf in row]

    def reduced(self, node: fx.Node) -> frozenset[Axis]:
        """The axes that a reduction sums over."""
        source: Any = node.args[0]
        rows = self.of(source)
        return frozenset(leaf for dim in reduced_dims(node) for leaf in rows[dim])

    # ---- assigning ----

    def assign(self, node: fx.Node) -> None:
        """Give the dimensions of a node their axes, from those of what it is made of."""
        value = held_value(node)
        if not isinstance(value, torch.Tensor):
            return
        target = node.target
        if node.op == "placeholder" or target in CREATED:
            self.dims[node] = [_fresh(size) for size in value.shape]
            if target in _LIKE:
                self._unify(self.dims[node], self.dims[node.args[0]])  # type: ignore[index]
        elif target in REDUCTIONS:
            self._reduce(node)
        elif target in VIEWS:
            self._view(node, value)
        elif target in CUTS or target is getitem:
            self._cut(node, value)
        elif target in PUTS:
            self._put(node)
        elif target in PICKS:
            self._pick(node, value)
        elif target in SCATTERS:
            self._scatter(node)
        else:
            self._broadcast(node, value)

    def _reduce(self, node: fx.Node) -> None:
        source: Any = node.args[0]
        dims, keepdim = reduced_dims(node), bool(argument_of(node, "keepdim"))
        rows = self.dims[source]
        if _needs_numbers(node, is_whole=len(dims) == len(rows)):
            self.bounds += [(1, held_value(source).shape[d]) for d in dims]
        kept = [() if d in dims else row for d, row in enumerate(rows)]
        self.dims[node] = kept if keepdim else [r for d, r in enumerate(kept) if d not in dims]

    def _broadcast(self, node: fx.Node, value: torch.Tensor) -> None:
        """A pointwise op: its arguments line up at the last dimension."""
        if node.target not in TABLE and not is_cast(node) and node.target not in POWERS:
            raise refusal(node)
        rank = value.dim()
        rows: list[Row] = [()] * rank
        for arg in node.all_input_nodes:
            if arg not in self.dims:
                continue
            given = self.dims[arg]
            for place, row in enumerate(given, rank - len(given)):
                if leaves_of(row):
                    rows[place] = self._same(rows[place], row)
        self.dims[node] = [
            row if leaves_of(row) or same(size, 1) else _fresh(size)
            for row, size in zip(rows, value.shape, strict=True)
        ]

    def _pick(self, node: fx.Node, value: torch.Tensor) -> None:
        source: Any = node.args[0]
        rows, at = self.dims[source], self.dims[node.args[2]]  # type: ignore[index]
        dim = dim_of(node, source)
        if node.target is aten.index_select.default:
            self.dims[node] = [*rows[:dim], at[0] if at else (), *rows[dim + 1 :]]
            return
        for place in range(value.dim()):  # gather: the index has all dimensions
            if place != dim and leaves_of(rows[place]) and leaves_of(at[place]):
                self._same(rows[place], at[place])
        self.dims[node] = list(at)

    def _scatter(self, node: fx.Node) -> None:
        into, dim, *others = node.args
        rows = self.dims[into]  # type: ignore[index]
        for other in others:
            if other not in self.dims:
                continue
            for place, row in enumerate(self.dims[other]):  # type: ignore[index]
                is_along = place == int(dim) % len(rows)  # type: ignore[arg-type]
                if is_along and leaves_of(row):
                    raise refusal(node, "several elements of a row")
                if leaves_of(row) and leaves_of(rows[place]):
                    self._same(rows[place], row)
        self.dims[node] = list(rows)

    def _cut(self, node: fx.Node, value: Any) -> None:
        """Along the dimension that is cut there is a new axis, else those of the source."""
        target = node.target
        if target is getitem:
            self._part(node, value)
            return
        if target is aten.cat.default:
            self._joined(node, value)
            return
        source: Any = node.args[0]
        rows = list(self.dims[source])
        if target is aten.select.int:
            self._select(held_value(source).shape[dim_of(node, source)], node.args[2])
            del rows[dim_of(node, source)]
        elif target is aten.select_backward.default:
            dim = dim_of(node, node)
            self._select(value.shape[dim], node.args[3])
            rows.insert(dim, _fresh(value.shape[dim]))
        else:
            if target is aten.slice.Tensor:
                self._slice(node, held_value(source))
            elif target is aten.slice_backward.default:
                self._slice(node, value)
            known = tensor_of(source)
            rows = [
                row
                if known is not None and same(known.shape[d], size) and not _moves(node, d)
                else _fresh(size)
                for d, (row, size) in enumerate(zip(rows, value.shape, strict=True))
            ]
        self.dims[node] = rows

    def _put(self, node: fx.Node) -> None:
        """Those of the tensor that is put into; the other one's are the same but for one."""
        into, part = (list(self.dims[n]) for n in node.args[:2])  # type: ignore[index]
        dim = dim_of(node, node)
        if node.target is aten.select_scatter.default:
            self._select(held_value(node).shape[dim], node.args[3])
            part.insert(dim, ())
        else:
            self._slice(node, held_value(node))
        for place, (row, other) in enumerate(zip(into, part, strict=True)):
            if place != dim and leaves_of(row) and leaves_of(other):
                self._same(row, other)
        self.dims[node] = into

    def _part(self, node: fx.Node, value: torch.Tensor) -> None:
        """One of the pieces that `split` gives."""
        whole: Any = node.args[0]
        if whole.target not in CUTS:
            raise refusal(whole)
        source = whole.args[0]
        dim = dim_of(whole, source)
        rows = list(self.dims[source])
        if whole.target is aten.unbind.int:
            del rows[dim]
            self._equal(held_value(source).shape[dim], len(held_value(whole)))
        else:
            parts = [part.shape[dim] for part in held_value(whole)]
            self._equal(sum(parts), held_value(source).shape[dim])
            if whole.target is not aten.split_with_sizes.default:  # as many parts as there were
                self.bounds += [(1, parts[-1]), (parts[-1], parts[0])]
            rows[dim] = _fresh(value.shape[dim])
        self.dims[node] = rows

    def _joined(self, node: fx.Node, value: torch.Tensor) -> None:
        parts: Any = node.args[0]
        dim = dim_of(node, node)
        rows: list[Row] = [()] * value.dim()
        for part in parts:
            for place, row in enumerate(self.dims[part]):
                if place != dim and leaves_of(row):
                    rows[place] = self._same(rows[place], row)
        rows[dim] = _fresh(value.shape[dim])
        self.dims[node] = rows

    # ---- where parts lie ----

    def _equal(self, one: Any, two: Any) -> None:
        self.bounds += [(one, two), (two, one)]

    def _select(self, size: Any, place: Any) -> None:
        """One place of a dimension, counted from its end where it is negative."""
        place = held_value(place)
        self.bounds += [(-size, place)] if hint_of(place) < 0 else [(0, place), (place + 1, size)]

    def _slice(self, node: fx.Node, whole: torch.Tensor) -> None:
        """From a start to an end, which PyTorch moves into the tensor if they are outside.

        Kernels have the end that the example had: the one that is named, or that of the tensor.
        """
        size = whole.shape[dim_of(node, node)]
        start = self._inside(argument_of(node, "start") or 0, size)
        end = argument_of(node, "end")
        if end is None or (isinstance(end, int) and end >= sys.maxsize):
            self.bounds.append((start, size))
            return
        end = self._inside(end, size)
        is_named = hint_of(end) <= hint_of(size)
        self.bounds += [(start, end), (end, size)] if is_named else [(start, size), (size, end)]

    def _inside(self, place: Any, size: Any) -> Any:
        """A place that may be counted from the end, counted from the start."""
        place = held_value(place)
        found = place + size if hint_of(place) < 0 else place
        self.bounds.append((0, found))
        return found

    # ---- views ----

    def _view(self, node: fx.Node, value: torch.Tensor) -> None:
        source: Any = node.args[0]
        rows, target = self.dims[source], node.target
        if target is aten.permute.default:
            order: Any = node.args[1]
            self.dims[node] = [rows[dim % len(rows)] for dim in order]
        elif target is aten.transpose.int:
            a, b = (int(d) % len(rows) for d in node.args[1:3])  # type: ignore[arg-type]
            turned = list(rows)
            turned[a], turned[b] = turned[b], turned[a]
            self.dims[node] = turned
        elif target in (aten.t.default, aten.numpy_T.default):
            self.dims[node] = list(reversed(rows))
        elif target in (aten.expand.default, aten.expand_as.default):
            before = value.dim() - len(rows)
            padded: list[Row] = [()] * before + list(rows)
            pairs = zip(padded, value.shape, strict=True)
            self.dims[node] = [
                row if leaves_of(row) or same(size, 1) else _fresh(size) for row, size in pairs
            ]
        else:
            self.dims[node] = self._reshaped(node, rows, value.shape)

    def _reshaped(self, node: fx.Node, rows: Sequence[Row], shape: Sequence[Any]) -> list[Row]:
        """The dimensions of a view: dimensions of the source that are split or merged.

        Sizes are compared as they were in the examples where symbols do not tell: what a view
        does, it does for every size.
        """
        leaves = [leaf for row in rows for leaf in leaves_of(row)]
        found: list[Row] = []
        for size in shape:
            wanted, row = hint_of(size), []
            while wanted > 1:
                if not leaves:
                    raise refusal(node)
                leaf = leaves.pop(0)
                have = hint_of(leaf.size)
                if wanted % have == 0:
                    row.append(leaf)
                    wanted //= have
                elif have % wanted == 0:
                    outer = Axis(size if not row else wanted)
                    inner = Axis(_quotient(leaf.size, wanted, size if not row else None))
                    leaf.parts = (outer, inner)
                    row.append(outer)
                    leaves.insert(0, inner)
                    wanted = 1
                else:
                    raise refusal(node)
            found.append(tuple(row))
        if any(hint_of(leaf.size) > 1 for leaf in leaves):
            raise refusal(node)
        return found

    # ---- unions ----

    def _unify(self, one: Sequence[Row], two: Sequence[Row]) -> None:
        for a, b in zip(one, two, strict=True):
            if leaves_of(a) and leaves_of(b):
                self._same(a, b)

    def _same(self, one: Row, two: Row) -> Row:
        """The axes of two dimensions that are one."""
        a, b = list(leaves_of(one)), list(leaves_of(two))
        if not a or not b:
            return one or two
        while a and b:
            x, y = a.pop(0), b.pop(0)
            if x is y:
                continue
            m, n = hint_of(x.size), hint_of(y.size)
            if m == n:
                keep, drop = (
                    (x, y) if isinstance(x.size, int) or not isinstance(y.size, int) else (y, x)
                )
                drop.parts = (keep,)
            elif m % n == 0:
                rest = Axis(_quotient(x.size, n, y.size))
                x.parts = (y, rest)
                a.insert(0, rest)
            elif n % m == 0:
                rest = Axis(_quotient(y.size, m, x.size))
                y.parts = (x, rest)
                b.insert(0, rest)
            else:
                raise KernelError(
                    "dimensions that line up must have the same size", got=f"{x.size} and {y.size}"
                )
        return one


def assigned_axes(graph: fx.Graph) -> Axes:
    """The axes of all values of a graph; raises `KernelError` for an op that no kernel has."""
    axes = Axes()
    for node in graph.nodes:
        if node.op in ("placeholder", "call_function"):
            try:
                axes.assign(node)
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                raise refusal(node) from error
    return axes


def refusal(node: fx.Node, why: str = "") -> KernelError:
    """Why a node is in no kernel, with the user's line."""
    name = str(node.target).removeprefix("aten.").removesuffix(".default")
    fix = 'take it out of the function, or use backend="inductor"'
    if is_random(node):
        why = "random numbers, which the kernels do not draw"
        fix = "draw the mask outside, and pass it: `x * mask / (1 - p)`"
    return KernelError(
        f"`{name}` must be computed element by element, or along rows, to be in a Triton kernel",
        at=str(node.meta.get("place", "")),
        got=why or "an op that goes over its input in another way",
        fix=fix,
    )


_LIKE = (aten.full_like.default, aten.zeros_like.default, aten.ones_like.default)


def _fresh(size: Any) -> Row:
    return () if same(size, 1) else (Axis(size),)


def _quotient(size: Any, hint: int, symbol: Any) -> Any:
    by = hint if symbol is None else symbol
    return size // by


def dim_of(node: fx.Node, source: fx.Node) -> int:
    """The dimension of a source that an op names."""
    value = tensor_of(source)
    dim = argument_of(node, "dim")
    rank = value.dim() if value is not None else 1
    return int(dim or 0) % max(rank, 1)


def _moves(node: fx.Node, dim: int) -> bool:
    """Whether an op of `CUTS` moves numbers along a dimension whose size it keeps."""
    if node.target is not aten.flip.default:
        return False
    dims: Any = node.args[1]
    rank = held_value(node).dim()
    return not dims or dim in [int(d) % rank for d in dims]
