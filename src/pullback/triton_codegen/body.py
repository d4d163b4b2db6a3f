"""The body of a kernel around its values: rows, blocks of columns, stores and totals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pullback.graph.values import CASTS, aten, held_value
from pullback.triton_codegen.axes import REDUCTIONS, VIEWS
from pullback.triton_codegen.expressions import (
    ATOM,
    HELPERS,
    KernelText,
    Reduction,
    add,
    computed_in,
    is_cast,
    literal_text,
    made,
    reduction_of,
)
from pullback.triton_codegen.params import Param
from pullback.triton_codegen.plan import Kernel, KernelPlan, Store, goals_of
from pullback.triton_codegen.sizes import Sizes
from pullback.triton_codegen.wrapping import wrapped_line
from pullback.triton_codegen.writer import KernelScope, KernelSource, KernelWriter


def kernel_source(
    plan: KernelPlan, kernel: Kernel, name: str, names: Mapping[str, str], sizes: Sizes
) -> KernelSource:
    """The text of a kernel."""
    writer = _Body(plan, kernel, name, names, sizes)
    lines = writer.final() if kernel.is_final else writer.main()
    params = [*writer.params.listed(), *writer.constants()]
    body = [f"    {line}" for line in lines]
    called = set(re.findall(r"(?<![\w.])\w+(?=\()", "\n".join(lines)))
    return KernelSource(
        kernel, name, tuple(params), tuple(body), frozenset(called & HELPERS.keys())
    )


def _form(total: fx.Node) -> Reduction:
    return reduction_of(total, REDUCTIONS[total.target])


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
                self._accumulate(total)
            for store in self.kernel.stores:
                self._store(store)
        is_looped = self.kernel.is_looped
        ends = [line for one in self.accumulators for line in self._partial(*one)]
        head = self._head(is_looped)
        starts = []
        if is_looped:
            starts = [f"{name} = {self._empty(t, text)}" for t, name, text in self.accumulators]
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
        if not is_looped and not self.is_flat and self.kernel.rows:
            lines += self._mask_lines()
        return lines

    def _row_lines(self, *, is_looped: bool = True) -> list[str]:
        """Where the rows of a program are."""
        if self.is_flat and not is_looped:
            return ["row = tl.program_id(0).to(tl.int64)"]
        self.params.count(self.kernel.rows, "n_rows")
        if self.is_flat:
            return []
        first = "first" if is_looped else "tl.program_id(0).to(tl.int64) * ROWS"
        lines = [f"row = ({first} + tl.arange(0, ROWS))[:, None]"]
        return [*lines, *self._mask_lines()] if is_looped else lines

    def _mask_lines(self) -> list[str]:
        """Which rows of a tile there are, and which of its elements."""
        lines = ["in_rows = row < n_rows"] if "in_rows" in self.masks else []
        if "inside" in self.masks:
            rows = "in_rows" if "in_rows" in self.masks else "(row < n_rows)"
            cols = "in_cols" if "in_cols" in self.masks else "(col < n_cols)"
            lines.append(f"inside = {rows} & {cols}")
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
        self.params.count(self.kernel.cols, "n_cols")
        if self.is_flat:
            lines = [f"col = tl.arange(0, BLOCK){self.wide}"]
            return [*lines, "inside = col < n_cols"] if "inside" in self.masks else lines
        if self.kernel.has_reductions:
            lines = [f"col = tl.arange(0, COLS){self.wide}[None, :]"]
        else:
            place = "tl.program_id(1)" if self.kernel.rows else "tl.program_id(0)"
            lines = [f"col = ({place}{self.wide} * COLS + tl.arange(0, COLS))[None, :]"]
        if "in_cols" in self.masks or not self.kernel.rows:
            lines.append("in_cols = col < n_cols")
        if not self.kernel.rows and "inside" in self.masks:
            lines.append("inside = in_cols")
        return lines

    # ---- stores and totals ----

    def _store(self, store: Store) -> None:
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
            index: Any = self.index(store.node, store.dim, self.root) or literal_text(0)
            if not (isinstance(store.start, int) and store.start == 0):
                index = add(index, self._number(store.start))
            for leaf in self.plan.axes.of(store.output)[store.dim]:
                at = at.moved(leaf, index)
        offset = self._offset(store.output, at, store if store.dim is not None else None)
        pointer = self.params.pointer(store.output)
        place = f"{pointer} + {offset.text}" if offset.text else pointer
        mask = self.inside(offset.rows, offset.cols)
        masked = f", mask={mask}" if mask else ""
        scope = self.block if self.is_blocked and offset.cols else self.row
        scope.lines.append(f"tl.store({place}, {value.text}{masked})")

    def _keeps(self, total: fx.Node) -> bool:
        """Whether a total has columns."""
        return bool(self.plan.axes.all_of(total))

    def _accumulate(self, total: fx.Node) -> None:
        form = _form(total)
        source = self._typed(total, self._source_of(total, self.root))
        is_in_block = self.is_blocked and source.cols
        needs_mask = (source.cols and not self._keeps(total)) or (source.rows and not self.is_flat)
        text, empty = source.text, self._zero(total)
        if needs_mask and not (source.is_zero and empty in ("0", "0.0")):
            mask = self.inside(source.rows or not self.is_flat, source.cols)
            text = f"tl.where({mask}, {text}, {empty})" if mask else text
        name = self.params.fresh(f"{self.params.name(total)}_sum")
        if is_in_block:
            text = f"{form.along}({text}, 0)"
            if not self.kernel.is_looped:
                self.row.lines.append(f"{name} = {self._empty(total, source)}")
        is_updated = self.kernel.is_looped or is_in_block
        line = form.update(name, text) if is_updated else f"{name} = {text}"
        (self.block if is_in_block else self.row).lines.append(line)
        self.accumulators.append((total, name, source))

    def _zero(self, total: fx.Node) -> str:
        """What a total is of no numbers."""
        empty = _form(total).empty
        return empty if held_value(total).is_floating_point() or empty != "0.0" else "0"

    def _typed(self, total: fx.Node, source: KernelText) -> KernelText:
        before = held_value(total.args[0]).dtype
        if before.is_floating_point:
            return source
        wanted = computed_in(held_value(total).dtype)
        return made(f"{source.within(ATOM)}.to({wanted})", ATOM, source, is_zero=source.is_zero)

    def _empty(self, total: fx.Node, source: KernelText) -> str:
        """What an accumulator begins with."""
        has_cols = source.cols or self._keeps(total)
        if self.is_flat and (self.is_blocked or not has_cols):
            return self._zero(total)
        if self.is_flat:
            return _filled("(BLOCK,)", total)
        rows = "ROWS" if self.kernel.rows else "1"
        return _filled(f"({rows}, {'COLS' if has_cols else 1})", total)

    def _partial(self, total: fx.Node, name: str, source: KernelText) -> list[str]:
        """What a program writes of a total when it has gone over its rows."""
        pointer = self.params.pointer(total, f"{self.params.name(total)}_parts")
        along = _form(total).along
        if self._keeps(total):
            value = name if self.is_flat else f"{along}({name}, 0, keep_dims=True)"
            mask = "inside" if self.is_flat else "in_cols"
            self.masks.add(mask)
            return [f"tl.store({pointer} + program * n_cols + col, {value}, mask={mask})"]
        if not self.is_flat:
            value = f"{along}({along}({name}, 1), 0)"
        else:
            value = f"{along}({name}, 0)" if source.cols and not self.is_blocked else name
        kernel = self.kernel
        place = "program" if kernel.is_looped or not self.is_flat else "row"
        if not self.is_flat and not kernel.has_reductions and kernel.rows and kernel.cols:
            place = "tl.program_id(1) * tl.num_programs(0) + program"
        return [f"tl.store({pointer} + {place}, {value})"]

    # ---- rows in blocks ----

    def _blocks(self) -> None:
        """Each round of reductions goes over the blocks of a row, and the last over its stores."""
        self.masks.add("inside")
        for nodes in self._rounds():
            starts, ends = [], []
            for node in nodes:
                begin, end = self._reduction(node, nodes)
                starts += begin
                ends += end
            self._close(starts, ends)
            for node in nodes:
                self._finish_row(node)
        for total in self.kernel.totals:
            self._accumulate(total)
        for store in self.kernel.stores:
            self._store(store)
        if self.block.lines:
            self._close([], [])

    def _close(self, starts: Sequence[str], ends: Sequence[str]) -> None:
        self.params.count(self.kernel.cols, "n_cols")
        col = f"col = start + tl.arange(0, BLOCK){self.wide}"
        body = [col, "inside = col < n_cols", *self.places["col"]]
        lines = [*starts, "for start in range(0, n_cols, BLOCK):"]
        lines += [f"    {line}" for line in [*body, *self.block.lines, *ends]]
        self.row.lines += lines
        self.block = KernelScope()

    def _rounds(self) -> list[list[fx.Node]]:
        """Reductions along columns, by how many others each depends on."""
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

        for goal in goals_of(self.kernel):
            depth(goal)
        found: dict[int, list[fx.Node]] = {}
        for node, kind in self.plan.kinds.items():
            if node in depths and kind == "row" and self.plan.axes.reduced(node):
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
        if not isinstance(largest, fx.Node) or not largest.meta.get("is_shift"):
            return None
        if _plain(largest.args[0]) is not _plain(d.args[0]):
            return None
        return largest if self.plan.axes.reduced(largest) == self.plan.axes.reduced(node) else None

    def _reduction(self, node: fx.Node, nodes: Sequence[fx.Node]) -> tuple[list[str], list[str]]:
        """The lines before a loop, and the last in it, that reduce a row block by block."""
        name = self.params.fresh(self.params.name(node))
        self.row.known["total of", node] = KernelText(name, rows=True)
        partner = self._partner(node)
        if partner in nodes:
            return self._online(node, name, partner)
        if any(self._partner(other) is node for other in nodes):
            return [f'{name} = -float("inf")'], []  # its sum of exponentials keeps it up to date
        source, form = self._source_of(node, self.root), _form(node)
        text = source.text
        if not source.cols or not (source.is_zero and form.empty == "0.0"):
            text = f"tl.where(inside, {text}, {form.empty})"
        return [f"{name} = {form.empty}"], [form.update(name, f"{form.along}({text}, 0)")]

    def _online(self, node: fx.Node, name: str, largest: Any) -> tuple[list[str], list[str]]:
        """A sum of exponentials, scaled anew when a larger number comes."""
        best = self.row.known["total of", largest].text
        source = self.value(largest.args[0], self.root)
        if not source.text.isidentifier():
            source = self.bind(object(), self.params.fresh("x"), source)
        x = source.text
        new, shift = self.params.fresh(f"new_{best}"), self.params.fresh("shift")
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
        count = KernelText(self.params.count(self.kernel.cols, "n_cols"))
        found = self._finished(REDUCTIONS[node.target], total, count)
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
        self.params.scalar("n_parts", "n_parts")
        if has_cols:
            self.params.count(self.kernel.cols, "n_cols")
            lines += ["col = tl.program_id(0) * COLS + tl.arange(0, COLS)", "inside = col < n_cols"]
        starts, loads, ends = [], [], []
        for total in self.kernel.totals:
            name = self.params.fresh(self.params.name(total))
            form, kind = _form(total), REDUCTIONS[total.target]
            pointer = self.params.pointer(total, f"{self.params.name(total)}_parts")
            place = "part[:, None] * n_cols + col[None, :]" if has_cols else "part"
            mask = "(part < n_parts)[:, None] & inside[None, :]" if has_cols else "part < n_parts"
            starts.append(f"{name} = {_filled(shape, total)}")
            load = f"tl.load({pointer} + {place}, mask={mask}, other={self._zero(total)})"
            loads.append(form.update(name, load))
            summed = KernelText(f"{form.along}({name}, 0)", cols=has_cols)
            summed = self._finished(kind, summed, self._count_of(total))
            ends.append(f"{name} = {summed.text}")
            self.before.known[self._key(total, self.root)] = KernelText(name, cols=has_cols)
        loop = ["for start in range(0, n_parts, PARTS):", "    part = start + tl.arange(0, PARTS)"]
        lines += [*starts, *loop, *(f"    {line}" for line in loads), *ends]
        for total in self.kernel.totals:
            if total in self.plan.buffers and not any(s.node is total for s in self.kernel.stores):
                self.params.tensors.pop(total, None)
                self._store_total(total)
        for store in self.kernel.stores:
            if store.output in self.params.tensors:  # the parts of a total have its name already
                self.params.tensors.pop(store.output)
            self._store(store)
        lines += [*self.places["col"], *self.before.lines, *self.row.lines]
        return [part for line in lines for part in wrapped_line(line)]

    def _count_of(self, total: fx.Node) -> KernelText:
        """How many numbers a mean is of."""
        if REDUCTIONS[total.target] != "mean":
            return KernelText("")
        over, every = self.plan.axes.reduced(total), self.plan.axes.all_of(total.args[0])  # type: ignore[arg-type]
        given = self.sizes.product([leaf.size for leaf in every if leaf in over])
        return KernelText(self.params.scalar(self.params.fresh("count"), given))

    def _store_total(self, total: fx.Node) -> None:
        value = self.before.known[self._key(total, self.root)]
        pointer = self.params.pointer(total)
        mask = ", mask=inside" if self.kernel.cols else ""
        place = f"{pointer} + col" if self.kernel.cols else pointer
        self.row.lines.append(f"tl.store({place}, {value.text}{mask})")


def _filled(shape: str, total: fx.Node) -> str:
    """Accumulators of a total, as they begin."""
    dtype, empty = computed_in(held_value(total).dtype), _form(total).empty
    if empty == "0.0":
        return f"tl.zeros({shape}, {dtype})"
    return f"tl.full({shape}, {empty}, {dtype})"


def _plain(node: Any) -> Any:
    """What a value is, below views and casts that round nothing."""
    while isinstance(node, fx.Node) and (
        node.target in VIEWS or (node.target in CASTS and held_value(node).dtype == torch.float32)
    ):
        node = node.args[0]
    return node
