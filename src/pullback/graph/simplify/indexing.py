"""Indexing: gradients of slices, selections and look-ups, as zeros with something put in.

These move numbers and add some of them: exact, but for the order in which `index_put` adds up what
falls on one place.
"""

from __future__ import annotations

import sys
from typing import Any

from pullback.graph.rewrite import Table
from pullback.graph.simplify.composites import composite
from pullback.graph.values import aten

EXACT = "zeros everywhere else, and the numbers themselves in the slice"


def slice_backward(g: Any, sizes: Any, dim: int, start: Any, end: Any, step: Any) -> Any:
    """Padding with zeros where the slice is plain and of known size, else a scatter."""
    size = sizes[dim]
    if step == 1 and all(isinstance(number, int) for number in (*sizes, start, end)):
        start, end = clipped(start, size), clipped(end, size)
        behind = g.dim() - 1 - dim % g.dim()
        return g.made(aten.constant_pad_nd.default, [0, 0] * behind + [start, size - end], 0.0)
    end = None if isinstance(end, int) and end == sys.maxsize else end
    return g.new_zeros(sizes).made(aten.slice_scatter.default, g, dim, start, end, step)


def clipped(position: int, size: int) -> int:
    """A position of a slice, as Python counts it."""
    return min(max(position + size if position < 0 else position, 0), size)


def select_backward(g: Any, sizes: Any, dim: int, index: Any) -> Any:
    """A scatter of one slice."""
    return g.new_zeros(sizes).made(aten.select_scatter.default, g, dim, index)


def embedding_backward(g: Any, index: Any, rows: Any, padding: int, by_frequency: bool) -> Any:
    """Rows added up at their indices; the row of the padding gets nothing."""
    if by_frequency:
        return None
    if isinstance(padding, int) and padding >= 0:
        g = g.masked_fill(index.eq(padding).unsqueeze(-1), 0)
    return g.new_zeros([rows, g.shape[-1]]).index_put([index], g, True)


TABLE: Table = (
    composite(aten.slice_backward.default, slice_backward, why=EXACT, is_late=True),
    composite(aten.select_backward.default, select_backward, why=EXACT, is_late=True),
    composite(aten.embedding_dense_backward.default, embedding_backward),
)
