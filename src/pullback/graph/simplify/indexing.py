"""Indexing: gradients of slices, selections and look-ups, as zeros with something put in.

These move numbers and add some of them: exact, but for the order in which `index_put` adds up what
falls on one place.
"""

from __future__ import annotations

import sys
from typing import Any

from pullback.graph.rewrite import Table
from pullback.graph.simplify.composites import composite
from pullback.graph.values import Value, aten, same

EXACT = "zeros everywhere else, and the numbers themselves in the slice"


def slice_backward(g: Any, sizes: Any, dim: int, start: Any, end: Any, step: Any) -> Any:
    """Padding with zeros where the slice is plain and of known size, else a scatter."""
    size = sizes[dim]
    behind = g.dim() - 1 - dim % g.dim()
    if step == 1 and isinstance(size, Value) and isinstance(start, int) and start >= 0:
        cut = 0 if end == sys.maxsize else -end if isinstance(end, int) and end < 0 else None
        # Known for every size: a slice of something shorter would be shorter too.
        if cut is not None and same(g.val.shape[dim] + start + cut, size.val):
            padded = g.made(aten.constant_pad_nd.default, [0, 0] * behind + [start, cut], 0.0)
            return padded.of_shape(sizes)
    if step == 1 and all(isinstance(number, int) for number in (*sizes, start, end)):
        start, end = clipped(start, size), clipped(end, size)
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


def max_pool_backward(
    g: Any, x: Any, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, index: Any
) -> Any:
    """Each gradient added where the largest of its window stands, counted within a channel."""
    base, places = x.new_zeros(x.shape), [*g.shape[:-2], -1]
    spread = base.reshape([*x.shape[:-2], -1])
    placed = spread.scatter_add(-1, index.reshape(places), g.reshape(places))
    return placed.reshape(x.shape)


TABLE: Table = (
    composite(aten.slice_backward.default, slice_backward, why=EXACT, is_late=True),
    composite(aten.select_backward.default, select_backward, why=EXACT, is_late=True),
    composite(aten.embedding_dense_backward.default, embedding_backward),
    composite(aten.max_pool2d_with_indices_backward.default, max_pool_backward),
)
