"""Which kernels a graph becomes: what each stores and sums, over which rows and columns.

What a graph returns and what it sums over rows are its *goals*. A goal has a *domain*: the axes
that are columns (those that reductions on its way go over, or the last) and those that are rows.
Goals of one domain are one kernel, which computes what they share once. A reduction along columns
is part of the kernel; one along rows is a *total*: each program keeps one in registers for the rows
that it goes over, writes it, and a small kernel adds these up in a fixed order (`is_final`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pullback.graph.cost import hint_of
from pullback.graph.cut_problem import ancestors
from pullback.graph.values import aten, held_value
from pullback.triton_codegen.axes import (
    REDUCTIONS,
    Axes,
    Axis,
    assigned_axes,
    refusal,
)

LONG = 16384
"""From how many columns on a row is read in blocks, where something is reduced along it."""

WIDE = 1024
"""From how many columns on a program takes one row at a time."""


@dataclass(frozen=True, eq=False)
class Group:
    """Axes that lie together in every tensor of a kernel, so that one index serves them."""

    leaves: tuple[Axis, ...]

    @property
    def hint(self) -> int:
        """Its size, as it was in the examples."""
        size = 1
        for leaf in self.leaves:
            size *= hint_of(leaf.size)
        return size


@dataclass(frozen=True, eq=False)
class Store:
    """A value that a kernel writes: `node`, into the tensor of `output`, from `start` on.

    `start` belongs to the axis of the dimension `dim` where an output is put together of parts.
    """

    node: fx.Node
    output: fx.Node
    dim: int | None = None
    start: Any = 0


@dataclass(eq=False)
class Kernel:
    """One kernel: its domain, and its goals.

    `form` is "row" (one row at a time, whole), "tile" (several rows, whole or in blocks of
    columns), or "blocks" (one row at a time, block by block). `totals` are reductions along rows,
    `kept` the axes that they keep. In a final kernel, totals are what it adds up.
    """

    rows: list[Group]
    cols: list[Group]
    form: str = "tile"
    stores: list[Store] = field(default_factory=list)
    totals: list[fx.Node] = field(default_factory=list)
    has_reductions: bool = False
    keeps_columns: bool = False
    is_final: bool = False
    source: Kernel | None = None
    name: str = ""

    @property
    def groups(self) -> list[Group]:
        """All groups of axes, rows first."""
        return [*self.rows, *self.cols]

    @property
    def is_looped(self) -> bool:
        """Whether each program goes over several rows: to keep totals of columns, or of tiles.

        Where whole rows are reduced and only numbers are added up, a program per row is faster.
        """
        if not self.totals or not self.rows or self.is_final:
            return False
        return self.keeps_columns or not self.has_reductions

    def group_of(self, axis: Axis) -> Group | None:
        """The group that an axis is in."""
        return next((g for g in self.groups if axis in g.leaves), None)


@dataclass(eq=False)
class KernelPlan:
    """The kernels of a graph in the order in which they run.

    `kinds` says of each reduction whether it goes along columns ("row" values come of it) or is a
    "total". `buffers` are totals that later kernels read.
    """

    graph: fx.Graph
    axes: Axes
    kernels: list[Kernel]
    kinds: dict[fx.Node, str]
    outputs: list[fx.Node]
    buffers: list[fx.Node]

    @property
    def totals(self) -> list[fx.Node]:
        """The reductions along rows."""
        return [node for node, kind in self.kinds.items() if kind == "total"]

    @property
    def inputs(self) -> list[fx.Node]:
        """The placeholders that are tensors."""
        return [n for n in self.graph.find_nodes(op="placeholder") if holds_tensor(n)]


def goals_of(kernel: Kernel) -> list[Any]:
    """What a kernel computes of its inputs."""
    totals = [] if kernel.is_final else [total.args[0] for total in kernel.totals]
    return [*(store.node for store in kernel.stores), *totals]


def holds_tensor(node: Any) -> bool:
    """Whether a node holds a tensor."""
    return isinstance(node, fx.Node) and isinstance(held_value(node), torch.Tensor)


def planned_kernels(graph: fx.Graph) -> KernelPlan:
    """The kernels of a forward or backward graph; raises `KernelError` where it has none."""
    axes = assigned_axes(graph)
    return _Planner(graph, axes).plan()


# ---- goals ----


@dataclass(frozen=True, eq=False)
class _Goal:
    """A store or a total, the axes that it goes over, and the columns that it demands."""

    store: Store | None
    total: fx.Node | None
    axes: frozenset[Axis]
    columns: frozenset[Axis]
    order: tuple[Axis, ...]
    after: frozenset[fx.Node]  # totals that it reads
    kept: frozenset[Axis] = frozenset()  # the axes that a total keeps


class _Planner:
    def __init__(self, graph: fx.Graph, axes: Axes) -> None:
        self.graph, self.axes = graph, axes
        returned: Any = graph.output_node().args[0]
        found = [n for n in returned if holds_tensor(n) and n.op != "placeholder"]
        self.outputs = list(dict.fromkeys(found))
        self.live = ancestors(self.outputs)
        self.kinds: dict[fx.Node, str] = {}
        for node in graph.nodes:
            if node in self.live and node.target in REDUCTIONS:
                self.kinds[node] = self._kind(node)
        self.kernels: list[Kernel] = []

    def plan(self) -> KernelPlan:
        """All kernels."""
        totals = [n for n in self.graph.nodes if self.kinds.get(n) == "total"]
        goals = [self._total_goal(n) for n in totals]
        goals += [g for output in self.outputs for g in self._store_goals(output)]
        done: set[fx.Node] = set()
        buffers: list[fx.Node] = []
        while goals:
            ready = [g for g in goals if g.after <= done]
            if not ready:
                raise refusal(self.outputs[0], "sums that need one another")
            finals = [g for g in ready if g.store and g.after and self._fits_final(g)]
            now = [g for g in ready if g not in finals]
            start = len(self.kernels)
            for goal in sorted(now, key=lambda g: (not g.columns, -len(g.axes), g.total is None)):
                self._place(goal)
            for kernel in self.kernels[start:]:
                self.kernels += self._finals_of(kernel)
                done |= set(kernel.totals)
            for goal in finals:
                self._place_final(goal)
            for goal in now:
                buffers += [t for t in goal.after if t not in buffers]
            goals = [g for g in goals if g not in ready]
        for kernel in self.kernels:
            kernel.form = self._form(kernel)
        return KernelPlan(self.graph, self.axes, self.kernels, self.kinds, self.outputs, buffers)

    def _kind(self, node: fx.Node) -> str:
        """Whether a reduction goes along the columns of a kernel, or along its rows."""
        source: Any = node.args[0]
        every, reduced = self.axes.all_of(source), self.axes.reduced(node)
        if not reduced:
            return "row"
        if reduced >= set(every):
            return "total"
        if self._returns_to(node, reduced):
            return "row"
        return "row" if every[-1] in reduced else "total"

    def _returns_to(self, node: fx.Node, reduced: Collection[Axis]) -> bool:
        """Whether something that comes of a reduction varies again along what was reduced."""
        seen, left = set(), [node]
        while left:
            for user in left.pop().users:
                if user in seen or user not in self.live or user not in self.axes.dims:
                    continue
                seen.add(user)
                if set(self.axes.all_of(user)) & set(reduced):
                    return True
                left.append(user)
        return False

    def _needs(self, node: fx.Node) -> tuple[list[fx.Node], frozenset[fx.Node]]:
        """The reductions along columns that a value takes, and the totals that it reads."""
        totals = {n for n, kind in self.kinds.items() if kind == "total"}
        found = ancestors([node], totals)
        rows = [n for n, kind in self.kinds.items() if kind == "row" and n in found]
        return rows, frozenset(found & totals)

    def _total_goal(self, node: fx.Node) -> _Goal:
        source: Any = node.args[0]
        rows, totals = self._needs(source)
        every, reduced = self.axes.all_of(source), self.axes.reduced(node)
        columns = self._columns(rows)
        spread = frozenset(every) | self._spread(rows)
        kept = frozenset(every) - reduced
        return _Goal(None, node, spread, columns, self._order(every, rows), totals, kept)

    def _store_goals(self, output: fx.Node) -> Iterable[_Goal]:
        for store in self._stores(output):
            rows, totals = self._needs(store.node)
            every = self.axes.all_of(store.node)
            columns = self._columns(rows)
            spread = frozenset(every) | self._spread(rows)
            yield _Goal(store, None, spread, columns, self._order(every, rows), totals)

    def _stores(self, output: fx.Node) -> list[Store]:
        """An output as a whole, or each of the parts that it is put together of."""
        node = output
        while node.target in (aten.clone.default, aten.contiguous.default):
            node = node.args[0]  # type: ignore[assignment]
        if node.target is not aten.cat.default or self._needs(node)[0]:
            return [Store(output, output)]
        parts: Any = node.args[0]
        dim = int(node.args[1]) % held_value(node).dim() if len(node.args) > 1 else 0  # type: ignore[arg-type]
        stores, start = [], 0
        for part in parts:
            stores.append(Store(part, output, dim, start))
            start = start + held_value(part).shape[dim]
        return stores

    def _columns(self, rows: Sequence[fx.Node]) -> frozenset[Axis]:
        sets = {self.axes.reduced(one) for one in rows if self.axes.reduced(one)}
        if len(sets) > 1:
            raise refusal(rows[0], "sums along different dimensions in one result")
        return next(iter(sets), frozenset())

    def _spread(self, rows: Sequence[fx.Node]) -> frozenset[Axis]:
        """All axes that the sources of some reductions have."""
        found: set[Axis] = set()
        for one in rows:
            found |= set(self.axes.all_of(one.args[0]))  # type: ignore[arg-type]
        return frozenset(found)

    def _order(self, every: Sequence[Axis], rows: Sequence[fx.Node]) -> tuple[Axis, ...]:
        lists = [list(every), *(self.axes.all_of(one.args[0]) for one in rows)]  # type: ignore[arg-type]
        longest = max(lists, key=len)
        rest = [axis for one in lists for axis in one if axis not in longest]
        return tuple(dict.fromkeys([*longest, *rest]))

    # ---- kernels ----

    def _place(self, goal: _Goal) -> None:
        """Add a goal to a kernel of its domain, or make one."""
        for kernel in self.kernels:
            if not kernel.is_final and self._fits(goal, kernel):
                self._join(goal, kernel)
                return
        columns = goal.columns or goal.kept or frozenset(goal.order[-1:])
        rows = [a for a in goal.order if a not in columns]
        cols = [a for a in goal.order if a in columns]
        kernel = Kernel([Group((a,)) for a in rows], [Group((a,)) for a in cols])
        self.kernels.append(kernel)
        self._join(goal, kernel)

    def _join(self, goal: _Goal, kernel: Kernel) -> None:
        if goal.store is not None:
            kernel.stores.append(goal.store)
        if goal.total is not None:
            kernel.totals.append(goal.total)
            kernel.keeps_columns |= bool(goal.kept)
        node = goal.store.node if goal.store else goal.total
        if node is not None and any(
            self.axes.reduced(r)
            for r in self._needs(node if goal.store else node.args[0])[0]  # type: ignore[arg-type]
        ):
            kernel.has_reductions = True

    def _fits(self, goal: _Goal, kernel: Kernel) -> bool:
        rows = {a for g in kernel.rows for a in g.leaves}
        cols = {a for g in kernel.cols for a in g.leaves}
        is_new = self.kernels.index(kernel) >= self._start_of(goal)
        if not is_new or not goal.axes <= rows | cols:
            return False
        has_columns = bool(self._needs(goal.store.node if goal.store else goal.total.args[0])[0])  # type: ignore[arg-type,union-attr]
        if has_columns and goal.columns != cols:
            return False
        if goal.total is None:
            # A value of some rows only, or of columns alone, would be written many times.
            own = set(self.axes.all_of(goal.store.node)) if goal.store else set()
            return own == rows | cols or (own == rows and kernel.has_reductions)
        reduced = self.axes.reduced(goal.total)
        every = set(self.axes.all_of(goal.total.args[0]))  # type: ignore[arg-type]
        is_whole = cols <= every or kernel.has_reductions
        is_clear = rows <= reduced and (cols & every <= reduced or not (cols & reduced))
        return is_clear and rows <= every and is_whole

    def _start_of(self, goal: _Goal) -> int:
        """From which kernel on all totals that a goal reads are there."""
        made = [i for i, k in enumerate(self.kernels) if set(k.totals) & goal.after]
        return max(made, default=-1) + 1

    def _finals_of(self, kernel: Kernel) -> list[Kernel]:
        """The small kernels that add up what the programs of a kernel wrote."""
        found: dict[bool, Kernel] = {}
        for total in kernel.totals:
            kept = bool(self.axes.all_of(total))
            if kept not in found:
                cols = list(kernel.cols) if kept else []
                found[kept] = Kernel([], cols, is_final=True, source=kernel)
            found[kept].totals.append(total)
        return list(found.values())

    def _fits_final(self, goal: _Goal) -> bool:
        """Whether a value can be computed where the totals that it reads are added up."""
        node = goal.store.node if goal.store else None
        if node is None or goal.store is None or goal.store.dim is not None or goal.columns:
            return False
        own = set(self.axes.all_of(node))
        kept = [frozenset(self.axes.all_of(t)) for t in goal.after]
        if any(own != one for one in kept):
            return False
        sources = {id(k) for k in self.kernels if not k.is_final and set(k.totals) & goal.after}
        return len(sources) <= 1

    def _place_final(self, goal: _Goal) -> None:
        for kernel in self.kernels:
            if kernel.is_final and goal.after <= set(kernel.totals) and goal.store:
                kernel.stores.append(goal.store)
                return
        raise refusal(self.outputs[0], "sums of different rows in one result")

    def _form(self, kernel: Kernel) -> str:
        size = 1
        for group in kernel.cols:
            size *= group.hint
        if not kernel.has_reductions or kernel.is_final:
            return "tile"
        keeps = any(self.axes.all_of(t) for t in kernel.totals)
        if size > LONG and not keeps:
            return "blocks"
        return "row" if size >= WIDE else "tile"
