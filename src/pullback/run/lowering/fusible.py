"""Graphs in a form that a compiler fuses: fewer passes over memory, and the same results.

- A scatter of one element to each row is a choice for every element, and so part of the next
  kernel. Inductor fills and scatters in kernels of their own, which a GPU has to launch.
- A sum of sums is one sum. What is used at every step of a loop gets a gradient from each step,
  and Inductor passes once more over memory for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.graph.values import aten
from pullback.run.lowering.retrace import RetracedGraph

FORMS = "scatters of tensors and numbers, sums, casts kept"
"""What is done here, in words: code that was compiled after something else is compiled again."""


# ---- scatters ----


def fusible(row: Sequence[Any]) -> Mapping[Any, Callable[..., Any]]:
    """What ops are to be made of, for arguments like `row`; nothing where scatters are fast."""
    on_gpu = any(isinstance(value, Tensor) and value.is_cuda for value in row)
    forms = {aten.scatter.src: scatter_src, aten.scatter.value: scatter_value}
    return forms if on_gpu else {}


def scatter_value(into: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    """`aten.scatter.value` where each row gets one element; otherwise it stays what it is."""
    return _scatter(into, dim, index, torch.full_like(index, value, dtype=into.dtype))


def scatter_src(into: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """`aten.scatter.src`, likewise."""
    return _scatter(into, dim, index, src)


def _scatter(into: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    if not into.dim():
        return NotImplemented
    dim %= into.dim()
    one_each = [1 if d == dim else size for d, size in enumerate(into.shape)]
    if list(index.shape) != one_each or list(src.shape) != one_each:
        return NotImplemented
    across = [size if d == dim else 1 for d, size in enumerate(into.shape)]
    places = torch.arange(into.shape[dim], dtype=index.dtype, device=index.device).view(across)
    return torch.where(places == index, src, into)


# ---- sums ----


def merge_sums(retraced: RetracedGraph) -> None:
    """Turn what adds sums up, and of which nobody sees a part, into the sum of one tensor."""
    graph = retraced.module.graph
    kinds: dict[Any, str] = {}
    for node in graph.nodes:
        kind = _kind(node, kinds)
        if kind:
            kinds[node] = kind
    for root in [node for node in kinds if _is_add(node) and not _is_part(node, kinds)]:
        below = _below(root, kinds)
        if all(_is_part(node, kinds) for node in below) and sum(map(_is_sum, below)) > 1:
            with retraced.stage.mode:
                _merge(graph, [node for node in kinds if node in below or node is root])
    graph.eliminate_dead_code()
    retraced.module.recompile()


def _kind(node: fx.Node, kinds: Mapping[Any, str]) -> str:
    """How a node sums up, for sums and for what adds something to sums of one kind; or ""."""
    if _is_sum(node):
        value = node.all_input_nodes[0].meta["val"]
        place = f"{tuple(value.shape)} {value.dtype} {value.device}"
        return f"{node.target} {node.args[1:]} {node.kwargs} {place}"
    if not _is_add(node) or node.kwargs:
        return ""
    found = {kinds[one] for one in node.args if one in kinds}
    is_plain = all(one in kinds or _is_like(one, node) for one in node.args)
    return found.pop() if is_plain and len(found) == 1 else ""


def _is_sum(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in (aten.sum.default, aten.sum.dim_IntList)


def _is_add(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is aten.add.Tensor


def _is_like(value: Any, node: fx.Node) -> bool:
    """Whether a value is a number, or of the shape and dtype of what a node gives."""
    if not isinstance(value, fx.Node):
        return True
    of, to = value.meta["val"], node.meta["val"]
    return isinstance(of, Tensor) and str((of.shape, of.dtype)) == str((to.shape, to.dtype))


def _is_part(node: fx.Node, kinds: Mapping[Any, str]) -> bool:
    """Whether a node is seen only by what adds sums up."""
    return all(_is_add(user) and user in kinds for user in node.users)


def _below(root: fx.Node, kinds: Mapping[Any, str]) -> set[fx.Node]:
    """The adds and sums that an add of sums consists of."""
    found: set[fx.Node] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if _is_add(node):
            new = [one for one in node.all_input_nodes if one in kinds and one not in found]
            found.update(new)
            waiting += new
    return found


def _merge(graph: fx.Graph, tree: Sequence[fx.Node]) -> None:
    """Put one sum in the place of the last of these adds and sums, which are in order."""
    *_, root = tree
    parts: dict[Any, fx.Node] = {}  # what each is the sum of
    rests: dict[Any, Any] = {}  # and what is added to that
    for node in tree:
        if _is_sum(node):
            parts[node], total = node.all_input_nodes[0], node
            continue
        with graph.inserting_before(node):
            parts[node] = _added(graph, [parts[one] for one in node.args if one in parts])
            others = [rests.get(one) if one in parts else one for one in node.args]
            rests[node] = _added(graph, [one for one in others if one is not None])
    with graph.inserting_before(root):
        merged = _called(graph, total.target, parts[root], *total.args[1:], **total.kwargs)
        rest = rests[root]
        merged = merged if rest is None else _called(graph, aten.add.Tensor, merged, rest)
    if merged.meta["val"].stride() == root.meta["val"].stride():
        root.replace_all_uses_with(merged)


def _added(graph: fx.Graph, values: Sequence[Any]) -> Any:
    """The sum of at most two values."""
    if len(values) < 2:
        return values[0] if values else None
    first, second = sorted(values, key=lambda value: not isinstance(value, fx.Node))
    if not isinstance(first, fx.Node):
        return first + second
    return _called(graph, aten.add.Tensor, first, second)


def _called(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    node = graph.call_function(target, args, kwargs)
    values = [one.meta["val"] if isinstance(one, fx.Node) else one for one in args]
    node.meta["val"] = target(*values, **kwargs)
    return node
