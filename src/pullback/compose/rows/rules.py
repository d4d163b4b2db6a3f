"""What an op does with rows: each row for itself, a sum over them, or something that mixes them.

A tensor *has rows* if one of its dimensions grows with their number. Where that is, two captures of
a program with different numbers of rows say. The rules here say for an op whether row `i` of its
output depends on row `i` of its inputs alone; whoever asks has made sure that at most one dimension
of each tensor grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor, fx

from pullback.graph.cost import argument_of, is_random, op_name, op_of
from pullback.graph.values import held_value

RowDim = Callable[[fx.Node], int | None]
"""The dimension of a node's value that grows with the number of rows."""


class RowKind(Enum):
    """What an op does with rows."""

    EACH = "each row for itself"
    SUM = "a sum over rows, or a mean"
    MIXED = "rows together"


# By name: new tensors, of which only sizes and kinds are read from others.
NEW = frozenset(
    {
        *("full", "zeros", "ones", "empty", "scalar_tensor", "full_like", "zeros_like"),
        *("ones_like", "empty_like", "new_full", "new_zeros", "new_ones", "new_empty"),
        *("new_empty_strided", "empty_strided"),
    }
)
COUNTS = frozenset({"arange", "iota"})  # the numbers of rows themselves
_COPIES = frozenset(
    {"_to_copy", "clone", "detach", "alias", "lift_fresh_copy", "contiguous", "expand", "copy"}
)
_RESHAPES = frozenset({"view", "reshape", "_unsafe_view", "_reshape_copy"})
_TURNS = frozenset({"permute", "t", "transpose", "squeeze", "unsqueeze"})
_ALONG = frozenset(  # what works along the dimensions that it is given, or along all of them
    {
        *("sum", "mean", "amax", "amin", "any", "all", "argmax", "argmin", "logsumexp", "prod"),
        *("var", "var_mean", "std", "std_mean", "_softmax", "_log_softmax", "softmax"),
        *("_softmax_backward_data", "_log_softmax_backward_data", "log_softmax"),
        *("cumsum", "cumprod", "logcumsumexp", "sort", "topk", "max", "min", "median"),
        *("kthvalue", "mode", "linalg_vector_norm", "norm", "gather", "scatter", "scatter_add"),
        *("scatter_reduce", "select", "slice", "split", "split_with_sizes", "unbind", "cat"),
        *("stack", "flip", "roll", "select_scatter", "slice_scatter", "select_backward"),
        *("slice_backward", "glu", "glu_backward", "index_select"),
    }
)
_SUMS = frozenset({"sum", "mean"})
_ROLLED = frozenset({"flip", "roll"})


def kind_of(node: fx.Node, row_dim: RowDim) -> RowKind:
    """What the op of `node` does with rows."""
    name = op_name(node)
    op = op_of(node)
    if op is None or is_random(node):
        return RowKind.MIXED
    if name in NEW or name in _COPIES or name in _TURNS or torch.Tag.pointwise in op.tags:
        return RowKind.EACH  # tensors meet dimension by dimension, counted from the last
    if name in _RESHAPES:
        return _reshape(node, row_dim)
    if name in _ALONG:
        return _along(node, name, row_dim)
    if name in _PRODUCTS:
        return _PRODUCTS[name](node, row_dim)
    if name in ("index", "_unsafe_index", "index_put", "_unsafe_index_put"):
        return _index(node, name, row_dim)
    if name == "embedding":
        table, _ = _tensors(node)[:2]
        return RowKind.EACH if row_dim(table) is None else RowKind.MIXED
    if name == "embedding_dense_backward":
        return RowKind.SUM
    return RowKind.MIXED


def _tensors(node: fx.Node) -> list[fx.Node]:
    return [one for one in node.all_input_nodes if isinstance(held_value(one), Tensor)]


def _shape(node: fx.Node) -> Sequence[int]:
    return list(held_value(node).shape)


def _reshape(node: fx.Node, row_dim: RowDim) -> RowKind:
    """Rows stay together if what lies before their dimension in memory is as much as it was."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before, after = row_dim(source), row_dim(node)
    if before is None or after is None:
        return RowKind.MIXED
    outer = math.prod(_shape(source)[:before]) == math.prod(_shape(node)[:after])
    return RowKind.EACH if outer else RowKind.MIXED


def _along(node: fx.Node, name: str, row_dim: RowDim) -> RowKind:
    tensors = _tensors(node)
    rank = len(_shape(tensors[0]))
    places = {row_dim(one) for one in tensors if len(_shape(one)) == rank}
    if name == "index_select" and row_dim(tensors[-1]) is not None:
        return RowKind.MIXED
    if len(places) != 1 or None in places:
        return RowKind.MIXED  # a table that is read, or written, at places that rows say
    (place,) = places
    if place in _dims(node, name, rank + (name == "stack")):
        return RowKind.SUM if name in _SUMS else RowKind.MIXED
    return RowKind.EACH


def _dims(node: fx.Node, name: str, rank: int) -> set[int]:
    """The dimensions along which an op works."""
    given = argument_of(node, "dim")
    if given is None and name in _ROLLED:
        given = argument_of(node, "dims")
    if given is None and name in ("select", "slice", "split", "unbind", "cat", "stack", "flip"):
        given = 0
    if given is None or given == []:
        return set(range(rank))
    dims = given if isinstance(given, (list, tuple)) else [given]
    return {int(dim) % max(rank, 1) for dim in dims}


# ---- products ----


def _mm(node: fx.Node, row_dim: RowDim, first: int = 0) -> RowKind:
    a, b = node.args[first : first + 2]
    assert isinstance(a, fx.Node)
    assert isinstance(b, fx.Node)
    found = row_dim(a), row_dim(b)
    if found in ((0, None), (None, 1)):
        return RowKind.EACH
    return RowKind.SUM if found == (1, 0) and not first else RowKind.MIXED


def _addmm(node: fx.Node, row_dim: RowDim) -> RowKind:
    return _mm(node, row_dim, 1)


def _bmm(node: fx.Node, row_dim: RowDim) -> RowKind:
    a, b = node.args[:2]
    assert isinstance(a, fx.Node)
    assert isinstance(b, fx.Node)
    found = row_dim(a), row_dim(b)
    if found in ((0, 0), (1, None), (None, 2)):
        return RowKind.EACH
    return RowKind.SUM if found == (2, 1) else RowKind.MIXED


_PRODUCTS: dict[str, Callable[[fx.Node, RowDim], RowKind]] = {
    "mm": _mm,
    "addmm": _addmm,
    "bmm": _bmm,
}


# ---- indices ----


def _index(node: fx.Node, name: str, row_dim: RowDim) -> RowKind:
    """Rows of indices into a table, or rows that are indexed in their other dimensions."""
    source, indices = node.args[0], node.args[1]
    assert isinstance(source, fx.Node)
    assert isinstance(indices, (list, tuple))
    given = [one for one in indices if isinstance(one, fx.Node)]
    if any(held_value(one).dtype in (torch.bool, torch.uint8) for one in given):
        return RowKind.MIXED
    place = row_dim(source)
    with_rows = [one for one in given if row_dim(one) is not None]
    is_put = "put" in name
    if place is None:
        return RowKind.MIXED if is_put else RowKind.EACH
    at_rows: Any = indices[place] if place < len(indices) else None
    if at_rows is None:
        return RowKind.MIXED if with_rows else RowKind.EACH
    is_own = is_row_numbers(at_rows, row_dim) and held_value(at_rows).dim() == 1
    is_aligned = all(held_value(one).dim() == 1 for one in with_rows)
    return RowKind.EACH if is_own and is_aligned else RowKind.MIXED


def is_row_numbers(node: Any, row_dim: RowDim) -> bool:
    """Whether a node is `arange(rows)`: used as an index, it says "of this row"."""
    if not isinstance(node, fx.Node) or op_name(node) not in COUNTS or row_dim(node) is None:
        return False
    if op_name(node) == "iota":
        return bool(node.kwargs.get("start", 0) == 0 and node.kwargs.get("step", 1) == 1)
    return bool(len(node.args) == 1 or (node.args[0] == 0 and (*node.args, 1)[2] == 1))
