"""Running the loops of a row program: chunk after chunk, sums added up on the way.

A sum of products of matrices is added up in place, in float32 where the factors are of half
precision, so that no more than one such matrix is there at a time, and rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from pullback.capture.modes import autocast_off
from pullback.compose.rows.program import RowLoop, RowProgram, is_contracted
from pullback.graph.cost import op_name
from pullback.graph.values import held_value

Body = Callable[[list[Any]], Sequence[Any]]
"""What is done with one chunk: see `row_program.chunk_graph`."""

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """A range of rows, and what is done with it in each loop."""

    first: int
    rows: int
    bodies: Sequence[Body]


@dataclass(frozen=True, slots=True, eq=False)
class RowLoops:
    """A row program that can be run, for one number of rows."""

    program: RowProgram
    rows: int
    chunks: Sequence[Chunk]

    def run(self, row: Sequence[Any]) -> list[Any]:
        """The outputs, for a value of each placeholder of the graph."""
        inputs = self.program.paired.whole.find_nodes(op="placeholder")
        values: dict[fx.Node, Any] = dict(zip(inputs, row, strict=True))
        with torch.no_grad(), autocast_off():
            for number, loop in enumerate(self.program.loops):
                self._run_whole(values)
                self._run_loop(number, loop, values)
            self._run_whole(values)
        return [values[one] if isinstance(one, fx.Node) else one for one in self.program.outputs]

    def _run_whole(self, values: dict[fx.Node, Any]) -> None:
        """Compute what can be computed of the nodes that are not in loops."""
        program = self.program
        for node in program.nodes:
            if node in values or node in program.chunked or node in program.sums:
                continue
            if all(one in values for one in node.all_input_nodes):
                args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]

    def _run_loop(self, number: int, loop: RowLoop, values: dict[fx.Node, Any]) -> None:
        sums: dict[fx.Node, Tensor] = {}
        for chunk in self.chunks:
            given = [self._part(one, values[one], chunk) for one in loop.given]
            made = list(chunk.bodies[number](given))
            del given
            made.reverse()  # so that each is let go when it is taken
            for node in loop.sums:
                if is_contracted(node):
                    add_product(sums, node, made.pop(), made.pop())
                else:
                    self._add(sums, node, made.pop(), chunk)
            for node in loop.kept:
                self._keep(values, node, made.pop(), chunk)
        for node in loop.sums:
            values[node] = sums.pop(node).to(held_value(node).dtype)

    # ---- one chunk ----

    def _part(self, node: fx.Node, value: Any, chunk: Chunk) -> Any:
        """The rows of a chunk, of what has rows."""
        dim = self.program.row_dim(node)
        if dim is None:
            return value
        first, count = self._range(node, dim, chunk)
        return value.narrow(dim, first, count)

    def _range(self, node: fx.Node, dim: int, chunk: Chunk) -> tuple[int, int]:
        size = int(held_value(node).shape[dim])  # several to a row, where dimensions were joined
        first = chunk.first * size // self.rows
        return first, (chunk.first + chunk.rows) * size // self.rows - first

    def _add(self, sums: dict[fx.Node, Tensor], node: fx.Node, part: Tensor, chunk: Chunk) -> None:
        if op_name(node) == "mean":
            part = part.float() if part.dtype in _HALF else part
            part = part * (chunk.rows / self.rows)
        if node in sums:
            sums[node] += part
        else:
            sums[node] = part.to(torch.float32, copy=True) if part.dtype in _HALF else part.clone()

    def _keep(self, values: dict[fx.Node, Any], node: fx.Node, part: Tensor, chunk: Chunk) -> None:
        dim = self.program.row_dim(node)
        assert dim is not None
        if node not in values:
            values[node] = part.new_empty(held_value(node).shape)
        first, count = self._range(node, dim, chunk)
        values[node].narrow(dim, first, count).copy_(part)


def add_product(sums: dict[Any, Tensor], key: Any, a: Tensor, b: Tensor) -> None:
    """Add `a @ b` to a sum, in place; that of half precision is kept in float32."""
    is_half = a.dtype in _HALF
    if key not in sums:
        dtype = torch.float32 if is_half else a.dtype
        sums[key] = a.new_zeros((a.shape[0], b.shape[1]), dtype=dtype)
    total = sums[key]
    if is_half and a.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, a, b, torch.float32, out=total)
    elif is_half:
        total.addmm_(a.float(), b.float())
    else:
        total.addmm_(a, b)
