"""The body of a kernel around its values: rows, blocks of columns, stores and totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from pullback.graph.values import CASTS, aten, held_value
from pullback.triton_codegen.axes import REDUCTIONS, VIEWS
from pullback.triton_codegen.expressions import (
    ATOM,
    KernelText,
    add,
    computed_in,
    div,
    is_cast,
    made,
)
from pullback.triton_codegen.plan import Kernel, KernelPlan, Store
from pullback.triton_codegen.sizes import Sizes
from pullback.triton_codegen.writer import KernelSource, KernelWriter, Param, _Scope, wrapped_line

EMPTY = {"max": '-float("inf")', "min": 'float("inf")'}
COMBINED = {"max": "tl.maximum", "min": "tl.minimum"}
LOADED = {"max": "tl.max", "min": "tl.min"}


def kernel_source(
    plan: KernelPlan, kernel: Kernel, name: str, names: Mapping[str, str], sizes: Sizes
) -> KernelSource:
    """The text of a kernel."""
    writer = _Body(plan, kernel, name, names, sizes)
    lines = writer.final() if kernel.is_final else writer.main()
    params = [*writer.pointers, *writer.strides, *writer.scalars.values(), *writer.constants()]
    kept = {total: bool(plan.axes.all_of(total)) for total in kernel.totals}
    body = [f"    {line}" for line in lines]
    return KernelSource(kernel, name, tuple(params), tuple(body), frozenset(writer.helpers), kept)


class _Body(KernelWriter):
    """A writer of whole kernels."""

    def constants(self) -> list[Param]:
        """The parameters that a kernel is compiled for."""
        if self.kernel.is_final:
            names = ["COLS", "PARTS"] if self.kernel.cols else ["PARTS"]
        elif self.is_flat:
            names = ["BLOCK"]
        else:
            names = ["ROWS", "COLS"] if self.kernel.rows else ["COLS"]
        names += ["STAGES"] if self.kernel.is_looped and self.kernel.form == "row" else []
        return [Param(name, name, is_constant=True) for name in names]

    # ---- a kernel of rows and columns ----

    def main(self) -> list[str]:
        """The lines of a kernel that reads its inputs."""
        if self.is_blocked:
            self._blocks()
        else:
            for total in self.kernel.totals:
                self._accumulate(total, self.row)
            for store in self.kernel.stores:
                self._store(store, self.row)
        is_looped = self.kernel.is_looped
        head = self._head(is_looped)
        starts = []
        if is_looped:
            starts = [f"{name} = {self._empty(t, text)}" for t, name, text in self.accumulators]
        ends = [line for one in self.accumulators for line in self._partial(*one)]
        row = [*self.places["row"], *self.row.lines]
        if is_looped:
            row = [self._loop(), *(f"    {line}" for line in [*self._row_lines(), *row])]
        cols = [] if self.is_blocked else self.places["col"]
        lines = [*head, *cols, *self.before.lines, *starts, *row, *ends]
        return [part for line in lines for part in wrapped_line(line)]

    def _head(self, is_looped: bool) -> list[str]:
        lines = []
        if self.kernel.totals and (is_looped or not self.is_flat or not self.kernel.rows):
            lines.append("program = tl.program_id(0).to(tl.int64)")
        if not is_looped and self.kernel.rows:
            lines += self._row_lines(is_looped=False)
        if not self.is_blocked:
            lines += self._col_lines()
        if not is_looped and "inside" in self.masks and not self.is_flat and self.kernel.rows:
            lines += ["in_rows = row < n_rows"] if "in_rows" in self.masks else []
            lines += ["inside = (row < n_rows) & (col < n_cols)"]
        elif not is_looped and "in_rows" in self.masks:
            lines += ["in_rows = row < n_rows"]
        return lines

    def _row_lines(self, *, is_looped: bool = True) -> list[str]:
        """Where the rows of a program are."""
        self._count(self.kernel.rows, "n_rows")
        if self.is_flat:
            return [] if is_looped else ["row = tl.program_id(0).to(tl.int64)"]
        first = "first" if is_looped else "tl.program_id(0).to(tl.int64) * ROWS"
        lines = [f"row = ({first} + tl.arange(0, ROWS))[:, None]"]
        if is_looped and "in_rows" in self.masks:
            lines.append("in_rows = row < n_rows")
        if is_looped and "inside" in self.masks:
            lines.append("inside = (row < n_rows) & (col < n_cols)")
        return lines

    def _loop(self) -> str:
        step = "tl.num_programs(0)" if self.is_flat else "tl.num_programs(0) * ROWS"
        start = "program" if self.is_flat else "program * ROWS"
        name = "row" if self.is_flat else "first"
        if self.kernel.form != "row":
            return f"for {name} in range({start}, n_rows, {step}):"
        return f"for {name} in tl.range({start}, n_rows, {step}, num_stages=STAGES):"

    def _col_lines(self) -> list[str]:
        """Where the columns of a program are."""
        if not self.kernel.cols:
            return []
        self._count(self.kernel.cols, "n_cols")
        if self.is_flat:
            lines = ["col = tl.arange(0, BLOCK)"]
            return [*lines, "inside = col < n_cols"] if "inside" in self.masks else lines
        if self.kernel.has_reductions:
            lines = ["col = tl.arange(0, COLS)[None, :]"]
        else:
            place = "tl.program_id(1)" if self.kernel.rows else "tl.program_id(0)"
            lines = [f"col = ({place} * COLS + tl.arange(0, COLS))[None, :]"]
        if "in_cols" in self.masks or not self.kernel.rows:
            lines.append("in_cols = col < n_cols")
        if not self.kernel.rows and "inside" in self.masks:
            lines.append("inside = in_cols")
        return lines

    # ---- stores and totals ----

    def _store(self, store: Store, scope: Any) -> None:
        node, dtype = store.node, held_value(store.output).dtype
        while (
            self.uses.get(node, 0) <= 1
            and is_cast(node)
            and held_value(node).dtype == dtype
            and dtype.is_floating_point
        ):
            node = node.args[0]  # type: ignore[assignment]  # it is stored in that dtype
            dtype = held_value(node).dtype if not held_value(node).is_floating_point() else dtype
        value = self.value(node, self.root)
        at = self.root
        if store.dim is not None:
            part = self.plan.axes.of(store.node)[store.dim]
            index = self._index_of(part, self.root, store.node)
            start = self._number(store.start)
            moved = (
                index if store.start == 0 and isinstance(store.start, int) else add(index, start)
            )
            for leaf in self.plan.axes.of(store.output)[store.dim]:
                at = at.moved(leaf, moved)  # type: ignore[arg-type]
        offset = self._offset(store.output, at, store if store.dim is not None else None)
        pointer = self._pointer(store.output)
        place = f"{pointer} + {offset.text}" if offset.text else pointer
        mask = self.inside(offset.rows, offset.cols)
        masked = f", mask={mask}" if mask else ""
        (self.block if self.is_blocked and offset.cols else scope).lines.append(
            f"tl.store({place}, {value.text}{masked})"
        )

    def _accumulate(self, total: fx.Node, scope: Any) -> None:
        kind = REDUCTIONS[total.target]
        source = self._typed(total, self._source_of(total, self.root))
        keeps = bool(self.plan.axes.all_of(total))
        needs_mask = (source.cols and not keeps) or (source.rows and not self.is_flat)
        text = source.text
        zero = EMPTY.get(kind, "0.0" if held_value(total).is_floating_point() else "0")
        if needs_mask and not (source.is_zero and zero in ("0", "0.0")):
            mask = self.inside(source.rows or not self.is_flat, source.cols)
            text = f"tl.where({mask}, {text}, {zero})" if mask else text
        name = self._fresh(f"{self._name(total)}_sum")
        if self.is_blocked and source.cols:
            text = f"{LOADED.get(kind, 'tl.sum')}({text}, 0)"
        if not self.kernel.is_looped and not (self.is_blocked and source.cols):
            line = f"{name} = {text}"
        elif kind in COMBINED:
            line = f"{name} = {COMBINED[kind]}({name}, {text})"
        else:
            line = f"{name} += {text}"
        if self.is_blocked and source.cols and not self.kernel.is_looped:
            self.row.lines.append(f"{name} = {self._empty(total, source)}")
        scope = self.block if self.is_blocked and source.cols else scope
        scope.lines.append(line)
        self.accumulators.append((total, name, source))

    def _typed(self, total: fx.Node, source: KernelText) -> KernelText:
        before = held_value(total.args[0]).dtype
        if before.is_floating_point:
            return source
        wanted = computed_in(held_value(total).dtype)
        return made(f"{source.within(ATOM)}.to({wanted})", ATOM, source, is_zero=source.is_zero)

    def _empty(self, total: fx.Node, source: KernelText) -> str:
        """What an accumulator begins with."""
        kind, dtype = REDUCTIONS[total.target], computed_in(held_value(total).dtype)
        value = EMPTY.get(kind, "0.0")
        keeps = bool(self.plan.axes.all_of(total))
        if self.is_flat:
            if not (source.cols or keeps) or self.is_blocked:
                return value if held_value(total).is_floating_point() else "0"
            shape = "(BLOCK,)"
        else:
            rows = "ROWS" if self.kernel.rows else "1"
            shape = f"({rows}, {'COLS' if source.cols or keeps else 1})"
        return (
            f"tl.full({shape}, {value}, {dtype})"
            if value != "0.0"
            else f"tl.zeros({shape}, {dtype})"
        )

    def _partial(self, total: fx.Node, name: str, source: KernelText) -> list[str]:
        """What a program writes of a total when it has gone over its rows."""
        pointer = self._pointer(total, f"{self._name(total)}_parts")
        kind, keeps = REDUCTIONS[total.target], bool(self.plan.axes.all_of(total))
        add_up = LOADED.get(kind, "tl.sum")
        if keeps:
            value = name if self.is_flat else f"{add_up}({name}, 0, keep_dims=True)"
            mask = "inside" if self.is_flat else "in_cols"
            return [f"tl.store({pointer} + program * n_cols + col, {value}, mask={mask})"]
        has_vector = (source.cols and not self.is_blocked) or not self.is_flat
        value = name if not has_vector else f"{add_up}({name}, 0)"
        if not self.is_flat:
            value = f"{add_up}({add_up}({name}, 1), 0)"
        place = "program" if self.kernel.is_looped or not self.is_flat else "row"
        if (
            not self.is_flat
            and not self.kernel.has_reductions
            and self.kernel.rows
            and self.kernel.cols
        ):
            place = "tl.program_id(1) * tl.num_programs(0) + program"
        return [f"tl.store({pointer} + {place}, {value})"]

    # ---- rows in blocks ----

    def _blocks(self) -> None:
        """Each round of reductions goes over the blocks of a row, and the last over its stores."""
        self.masks.add("inside")
        for nodes in self._rounds():
            self.block = _Scope()
            starts, ends = [], []
            for node in nodes:
                begin, end = self._reduction(node, nodes)
                starts += begin
                ends += end
            self._close(starts, ends)
            for node in nodes:
                self._finish_row(node)
        self.block = _Scope()
        for total in self.kernel.totals:
            self._accumulate(total, self.row)
        for store in self.kernel.stores:
            self._store(store, self.row)
        if self.block.lines:
            self._close([], [])

    def _close(self, starts: Sequence[str], ends: Sequence[str]) -> None:
        self._count(self.kernel.cols, "n_cols")
        body = ["col = start + tl.arange(0, BLOCK)", "inside = col < n_cols", *self.places["col"]]
        lines = [*starts, "for start in range(0, n_cols, BLOCK):"]
        lines += [f"    {line}" for line in [*body, *self.block.lines, *ends]]
        self.row.lines += lines
        self.block = _Scope()

    def _rounds(self) -> list[list[fx.Node]]:
        """Reductions along columns, by how many others each depends on."""
        goals: list[Any] = [s.node for s in self.kernel.stores]
        goals += [t.args[0] for t in self.kernel.totals]
        depths: dict[fx.Node, int] = {}

        def depth(node: fx.Node) -> int:
            if node in depths:
                return depths[node]
            kind = self.plan.kinds.get(node)
            inner = 0 if kind == "total" else max(map(depth, node.all_input_nodes), default=0)
            is_own = kind == "row" and bool(self.plan.axes.reduced(node))
            partner = self._partner(node) if is_own else None
            depths[node] = depth(partner) if partner is not None else inner + is_own
            return depths[node]

        for goal in goals:
            depth(goal)
        order = {node: place for place, node in enumerate(self.plan.graph.nodes)}
        found: dict[int, list[fx.Node]] = {}
        for node in sorted(depths, key=order.__getitem__):
            if self.plan.kinds.get(node) == "row" and self.plan.axes.reduced(node):
                found.setdefault(depths[node], []).append(node)
        return [found[key] for key in sorted(found)]

    def _partner(self, node: fx.Node) -> fx.Node | None:
        """The largest number of a row whose exponentials, shifted by it, a reduction adds up."""
        if REDUCTIONS[node.target] != "sum":
            return None
        e = _plain(node.args[0])
        if e.target is not aten.exp.default:
            return None
        d = _plain(e.args[0])
        if d.target is not aten.sub.Tensor or d.kwargs:
            return None
        largest = _plain(d.args[1])
        is_largest = isinstance(largest, fx.Node) and largest.target is aten.amax.default
        if not is_largest or _plain(largest.args[0]) is not _plain(d.args[0]):
            return None
        return largest if self.plan.axes.reduced(largest) == self.plan.axes.reduced(node) else None

    def _reduction(self, node: fx.Node, nodes: Sequence[fx.Node]) -> tuple[list[str], list[str]]:
        """The lines before a loop, and the last in it, that reduce a row block by block."""
        kind = REDUCTIONS[node.target]
        name = self._fresh(self._name(node))
        self.row.known["total of", node] = KernelText(name, rows=True)
        partner = self._partner(node)
        if partner in nodes:
            return self._online(node, name, partner)
        if any(self._partner(other) is node for other in nodes):
            return [f'{name} = -float("inf")'], []  # its sum of exponentials keeps it up to date
        source = self._source_of(node, self.root)
        text = source.text
        zero = EMPTY.get(kind, "0.0")
        if source.cols and not (source.is_zero and zero == "0.0"):
            text = f"tl.where(inside, {text}, {zero})"
        if kind in COMBINED:
            return [f"{name} = {zero}"], [
                f"{name} = {COMBINED[kind]}({name}, {LOADED[kind]}({text}, 0))"
            ]
        if not source.cols:
            text = f"tl.where(inside, {text}, 0.0)"
        return [f"{name} = 0.0"], [f"{name} += tl.sum({text}, 0)"]

    def _online(self, node: fx.Node, name: str, largest: Any) -> tuple[list[str], list[str]]:
        """A sum of exponentials, scaled anew when a larger number comes."""
        best = self.row.known["total of", largest].text
        source = self.value(largest.args[0], self.root)
        x = (
            source.text
            if source.text.isidentifier()
            else self._bind(object(), self._fresh("x"), source).text
        )
        new, shift = self._fresh(f"new_{best}"), self._fresh("shift")
        infinity = 'float("inf")'
        return [f"{name} = 0.0"], [
            f"{new} = tl.maximum({best}, tl.max(tl.where(inside, {x}, -{infinity}), 0))",
            f"{shift} = tl.where({new} == -{infinity}, 0.0, {new})  # a row of -inf alone adds 0",
            f"{name} = {name} * tl.exp({best} - {shift})",
            f"{name} += tl.sum(tl.where(inside, tl.exp({x} - {shift}), 0.0), 0)",
            f"{best} = {new}",
        ]

    def _finish_row(self, node: fx.Node) -> None:
        total = self.row.known["total of", node]
        count = KernelText(self._count(self.kernel.cols, "n_cols"))
        found = self._finished(node, REDUCTIONS[node.target], total, count)
        key = self._key(node, self.root)
        self.row.known[key] = found
        if found is not total:
            self.row.lines.append(f"{total.text} = {found.text}")
            self.row.known[key] = total

    # ---- the small kernel that adds up ----

    def final(self) -> list[str]:
        """The lines of a kernel that adds up what programs wrote."""
        self.is_flat = True
        has_cols = bool(self.kernel.cols)
        lines: list[str] = []
        shape = "(PARTS, COLS)" if has_cols else "(PARTS,)"
        self._scalar("n_parts", "n_parts")
        if has_cols:
            self._count(self.kernel.cols, "n_cols")
            lines += ["col = tl.program_id(0) * COLS + tl.arange(0, COLS)", "inside = col < n_cols"]
        starts, loads, ends = [], [], []
        for total in self.kernel.totals:
            name = self._fresh(self._name(total))
            kind, dtype = REDUCTIONS[total.target], computed_in(held_value(total).dtype)
            empty = EMPTY.get(kind, "0.0")
            pointer = self._pointer(total, f"{self._name(total)}_parts")
            place = "part[:, None] * n_cols + col[None, :]" if has_cols else "part"
            mask = "(part < n_parts)[:, None] & inside[None, :]" if has_cols else "part < n_parts"
            starts.append(
                f"{name} = tl.full({shape}, {empty}, {dtype})"
                if kind in EMPTY
                else f"{name} = tl.zeros({shape}, {dtype})"
            )
            other = empty if held_value(total).is_floating_point() else "0"
            load = f"tl.load({pointer} + {place}, mask={mask}, other={other})"
            loads.append(
                f"{name} = {COMBINED[kind]}({name}, {load})"
                if kind in COMBINED
                else f"{name} += {load}"
            )
            summed = KernelText(f"{LOADED.get(kind, 'tl.sum')}({name}, 0)", cols=has_cols)
            if kind == "mean":
                over, every = self.plan.axes.reduced(total), self.plan.axes.all_of(total.args[0])  # type: ignore[arg-type]
                reduced = [leaf for leaf in every if leaf in over]
                given = self.sizes.product([leaf.size for leaf in reduced])
                summed = div(summed, KernelText(self._scalar(self._fresh("count"), given)))
            elif kind == "norm":
                summed = replace(summed, text=f"tl.sqrt({summed.text})")
            ends.append(f"{name} = {summed.text}")
            self.before.known[self._key(total, self.root)] = KernelText(name, cols=has_cols)
        loop = ["for start in range(0, n_parts, PARTS):", "    part = start + tl.arange(0, PARTS)"]
        lines += [*starts, *loop, *(f"    {line}" for line in loads), *ends]
        for total in self.kernel.totals:
            if total in self.plan.buffers and not any(s.node is total for s in self.kernel.stores):
                self.tensors.pop(total, None)
                self._store_total(total)
        for store in self.kernel.stores:
            if store.output in self.tensors:  # the parts of a total have its name already
                self.tensors.pop(store.output)
            self._store(store, self.row)
        lines += [*self.places["col"], *self.before.lines, *self.row.lines]
        return [part for line in lines for part in wrapped_line(line)]

    def _store_total(self, total: fx.Node) -> None:
        value = self.before.known[self._key(total, self.root)]
        pointer = self._pointer(total)
        mask = ", mask=inside" if self.kernel.cols else ""
        place = f"{pointer} + col" if self.kernel.cols else pointer
        self.row.lines.append(f"tl.store({place}, {value.text}{mask})")


def _plain(node: Any) -> Any:
    """What a value is, below views and casts that round nothing."""
    while isinstance(node, fx.Node) and (
        node.target in VIEWS or (node.target in CASTS and held_value(node).dtype == torch.float32)
    ):
        node = node.args[0]
    return node
