"""The lines that launch kernels: what is made for them, with which grid, and what comes back.

Block sizes are chosen from the sizes of a call: a whole row where it fits in registers, several
short rows together, else blocks of a row. Kernels that keep totals run as many programs as the GPU
runs at once, and each goes over several rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pullback.capture.layouts import memory_order
from pullback.graph.cost import hint_of
from pullback.graph.values import held_value
from pullback.triton_codegen.body import kernel_source
from pullback.triton_codegen.expressions import HELPERS
from pullback.triton_codegen.grouping import merge_groups
from pullback.triton_codegen.plan import Kernel, KernelPlan, holds_tensor, planned_kernels
from pullback.triton_codegen.sizes import Sizes, example_strides
from pullback.triton_codegen.wrapping import wrapped_line
from pullback.triton_codegen.writer import KernelSource

ACCUMULATED = {torch.float64: "torch.float64", torch.int64: "torch.int64"}


@dataclass(frozen=True, slots=True)
class PhaseText:
    """The kernels of a forward or backward graph as text, and the function that launches them.

    `returned` are the names of the values that it returns, in the order of the graph. `shapes` has
    for each parameter that is a tensor a key for each of its dimensions: those of one key are
    taken to have the same size. `conditions` are what else is taken to hold of sizes.
    """

    name: str
    kernels: tuple[KernelSource, ...]
    parameters: tuple[str, ...]
    lines: tuple[str, ...]
    returned: tuple[str, ...]
    shapes: tuple[tuple[Any, ...], ...] = ()
    conditions: tuple[Any, ...] = ()

    @property
    def made(self) -> tuple[str, ...]:
        """The names of what it returns and has made, each once."""
        others = ("None", *self.parameters)
        return tuple(
            dict.fromkeys(n for n in self.returned if n not in others and n.isidentifier())
        )

    @property
    def helpers(self) -> list[str]:
        """The functions that the kernels call."""
        found = {name for kernel in self.kernels for name in kernel.helpers}
        return [name for name in HELPERS if name in found]

    def function(self, doc: str) -> str:
        """The text of the function that launches."""
        head = f"def {self.name}({', '.join([*self.parameters, 'launch=direct'])}):"
        returned = ", ".join(self.returned) + ("," if len(self.returned) == 1 else "")
        body = [f'"""{doc}"""', *self.lines, f"return {returned}" if returned else "return ()"]
        return "\n".join(
            [*wrapped_line(head), *(part for line in body for part in wrapped_line(f"    {line}"))]
        )


class HostNames(dict[str, str]):
    """Names of nodes in a text, by the names of the nodes; `given` are those worth a line."""

    given: frozenset[str] = frozenset()


def phase_text(
    graph: fx.Graph, name: str, names: HostNames, made: frozenset[str] = frozenset()
) -> PhaseText:
    """The kernels of a graph and their launches; `made` are inputs that other kernels made."""
    plan = planned_kernels(graph)
    merge_groups(plan, example_strides(plan))
    named = _named_totals(plan, names)
    contiguous = {n.name for n in plan.outputs if _is_contiguous(n)}
    own = contiguous | {n.name for n in plan.totals}
    return _Host(plan, name, named, Sizes(plan, named, made | own)).text()


def _named_totals(plan: KernelPlan, names: HostNames) -> HostNames:
    """The names, where a total that becomes an output by a cast alone has the output's."""
    found = HostNames(names)
    found.given = names.given
    taken = set(names.values())
    for node in plan.totals:
        users = list(node.users)
        is_cast = len(users) == 1 and users[0] in plan.outputs and users[0].op == "call_function"
        if is_cast and node not in plan.outputs:
            wish = f"{names.get(users[0].name, users[0].name)}_total"
            if wish not in taken:
                found[node.name] = wish
                taken.add(wish)
    return found


def _key(row: Sequence[Any]) -> Any:
    return tuple(id(axis) for axis in row)


def _is_contiguous(node: fx.Node) -> bool:
    value = held_value(node)
    order = memory_order([hint_of(s) for s in value.stride()])
    sizes = [hint_of(s) for s in value.shape]
    kept = [d for d in order if sizes[d] > 1]
    return kept == sorted(kept)


@dataclass(eq=False)
class _Host:
    plan: KernelPlan
    name: str
    names: HostNames
    sizes: Sizes
    lines: list[str] = field(default_factory=list)
    sources: list[KernelSource] = field(default_factory=list)

    def text(self) -> PhaseText:
        """Everything."""
        self._merge_lines()
        for output in self.plan.outputs:
            self.lines.append(f"{self._name(output)} = {self._empty(output)}")
        for total in self.plan.buffers:
            if total not in self.plan.outputs:
                self.lines.append(f"{self._name(total)} = {self._empty(total, is_total=True)}")
        for kernel in self.plan.kernels:
            self._launch(kernel)
        returned: Any = self.plan.graph.output_node().args[0]
        given = list(self.plan.graph.find_nodes(op="placeholder"))
        return PhaseText(
            self.name,
            tuple(self.sources),
            tuple(self._name(n) for n in given),
            tuple(self.lines),
            tuple(self._returned(one) for one in returned),
            tuple(tuple(map(_key, self.plan.axes.of(n))) for n in self.plan.inputs),
            (*self.plan.axes.conditions, *self.sizes.conditions),
        )

    def _returned(self, value: Any) -> str:
        if holds_tensor(value):
            return self._name(value)
        if isinstance(value, fx.Node):
            return self.sizes.text(held_value(value))
        return repr(value)

    def _name(self, node: fx.Node) -> str:
        return self.names.get(node.name, node.name)

    def _merge_lines(self) -> None:
        """Inputs whose dimensions are merged into one index must lie so: else they are copied."""
        for node in self.plan.inputs:
            pairs: set[tuple[int, int]] = set()
            rows = self.plan.axes.of(node)
            for kernel in self.plan.kernels:
                for group in kernel.groups:
                    dims = [d for d, row in enumerate(rows) if set(row) & set(group.leaves)]
                    pairs |= set(itertools.pairwise(dims))
            if pairs and node.name not in self.sizes.made:
                name = self._name(node)
                tests = [
                    f"{name}.stride({a}) != {name}.shape[{b}] * {name}.stride({b})"
                    for a, b in sorted(pairs)
                ]
                self.lines.append(f"if {' or '.join(tests)}:")
                self.lines.append(f"    {name} = {name}.contiguous()")

    # ---- memory ----

    def _empty(self, node: fx.Node, *, is_total: bool = False) -> str:
        value = held_value(node)
        shape = ", ".join(self.sizes.text(size) for size in value.shape)
        shape = f"({shape},)" if value.dim() == 1 else f"({shape})"
        dtype = self._total_dtype(value.dtype) if is_total else str(value.dtype)
        facts = f"dtype={dtype}, device={self._device()}"
        if is_total or _is_contiguous(node):
            return f"torch.empty({shape}, {facts})"
        order = memory_order([hint_of(s) for s in value.stride()])
        return f"torch.empty_permuted({shape}, {tuple(order)}, {facts})"

    def _device(self) -> str:
        return f"{self._name(self.plan.inputs[0])}.device"

    def _total_dtype(self, dtype: torch.dtype) -> str:
        return ACCUMULATED.get(dtype, "torch.float32")

    # ---- launches ----

    def _launch(self, kernel: Kernel) -> None:
        name = self._kernel_name(kernel)
        source = kernel_source(self.plan, kernel, name, self.names, self.sizes)
        self.sources.append(source)
        kernel.name = name
        if kernel.is_final:
            self._launch_final(kernel, source)
            return
        constants, grid = self._grid(kernel)
        if kernel.totals:
            self.lines.append(f"programs = {grid}")
            count = (
                "programs[0] * programs[1]"
                if ", cdiv" in grid or ", blocks" in grid
                else "programs[0]"
            )
            for total in kernel.totals:
                keeps = bool(self.plan.axes.all_of(total))
                parts = "programs[0]" if keeps else count
                cols = f", {self.sizes.of_groups(kernel.cols)}" if keeps else ","
                dtype = self._total_dtype(held_value(total).dtype)
                self.lines.append(
                    f"{self._name(total)}_parts = torch.empty(({parts}{cols}), "
                    f"dtype={dtype}, device={self._device()})"
                )
            grid = "programs"
        self._call(source, grid, constants)

    def _call(self, source: KernelSource, grid: str, constants: Mapping[str, str]) -> None:
        if len(grid) > len("programs"):
            self.lines.append(f"grid = {grid}")
            grid = "grid"
        given = [p.given for p in source.params if not p.is_constant]
        named = [f"{key}={value}" for key, value in constants.items()]
        whole = f"launch({source.name}, {grid})({', '.join([*given, *named])})"
        self.lines.append(whole)

    def _launch_final(self, kernel: Kernel, source: KernelSource) -> None:
        first = kernel.totals[0]
        self.lines.append(f"n_parts = {self._name(first)}_parts.shape[0]")
        if kernel.cols:
            grid = f"(triton.cdiv({self.sizes.of_groups(kernel.cols)}, 16),)"
            self._call(source, grid, {"COLS": "16", "PARTS": "256", "num_warps": "4"})
        else:
            self._call(source, "(1,)", {"PARTS": "1024", "num_warps": "4"})

    def _kernel_name(self, kernel: Kernel) -> str:
        taken = {source.name for source in self.sources}
        wish = f"{self.name}_sums" if kernel.is_final else f"{self.name}_kernel"
        name, number = wish, 2
        while name in taken:
            name, number = f"{wish}_{number}", number + 1
        return name

    def _grid(self, kernel: Kernel) -> tuple[dict[str, str], str]:
        """The sizes of blocks, and how many programs there are."""
        rows = self.sizes.of_groups(kernel.rows) if kernel.rows else "1"
        cols = self.sizes.of_groups(kernel.cols) if kernel.cols else "1"
        device = self._device()
        if kernel.form in ("row", "blocks"):
            constants = {"BLOCK": f"triton.next_power_of_2({cols})"}
            grid = f"(min({rows}, programs_of({device})),)" if kernel.is_looped else f"({rows},)"
            return constants if kernel.form == "row" else {}, grid
        if kernel.has_reductions:
            self.lines.append(f"ROWS, COLS = row_tile({cols})")
            grid = f"triton.cdiv({rows}, ROWS)"
            grid = f"(min({grid}, programs_of({device})),)" if kernel.is_looped else f"({grid},)"
            return {"ROWS": "ROWS", "COLS": "COLS"}, grid
        most = ", most=512" if kernel.totals else ""
        self.lines.append(f"ROWS, COLS = tile({cols}{most})")
        blocks = f"triton.cdiv({cols}, COLS)"
        if not kernel.rows:
            return {"COLS": "COLS"}, f"({blocks},)"
        grid = f"triton.cdiv({rows}, ROWS)"
        if kernel.totals:
            self.lines.append(f"blocks = max({blocks}, 1)")
            most = f"triton.cdiv(16 * programs_of({device}), blocks)"
            return {"ROWS": "ROWS", "COLS": "COLS"}, f"(min({grid}, {most}), blocks)"
        return {"ROWS": "ROWS", "COLS": "COLS"}, f"({grid}, {blocks})"


COMMON = {
    "launch": '''\
def direct(kernel, grid):
    """A kernel on a grid, as it is."""
    return kernel[grid]


def traced(kernel, grid):
    """A kernel on a grid, in a form that tracing and export see through."""
    return kernel[grid] if INTERPRETED else torch.library.wrap_triton(kernel)[grid]
''',
    "programs_of": '''\
@functools.cache
def programs_of(device):
    """How many programs that go over several rows run on a device at once."""
    if device.type != "cuda":
        return 4
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count
''',
    "row_tile": '''\
def row_tile(n_cols):
    """How many whole rows a program takes at once, and of which width."""
    cols = triton.next_power_of_2(max(n_cols, 1))
    return max(1, 2048 // cols), cols
''',
    "tile": '''\
def tile(n_cols, most=1024):
    """How many rows and columns a program takes at once where each element stands alone."""
    cols = min(triton.next_power_of_2(max(n_cols, 1)), most)
    return max(1, 2048 // cols), cols
''',
}
"""Functions that launches call, by name."""
