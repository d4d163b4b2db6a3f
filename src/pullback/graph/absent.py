"""A backward graph for outputs that were not used: an absent cotangent is not one of zeros.

The engine does not run what leads to an output without a cotangent. Zeros in its place give the
same, but where a slope is infinite: zero times infinity is NaN. So what is computed of absent
cotangents alone is left out; it is linear in them, as all of a backward is that PyTorch wrote.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, fx

from pullback.graph.copies import copied_graph
from pullback.graph.cost import op_name
from pullback.graph.dead import erase_dead
from pullback.graph.values import aten, flat_leaves, held_value, same_kind

FRESH = ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full")
"""Ops that read of a tensor what it is, and not its numbers."""


def without_absent(backward: fx.Graph, count: int, absent: Collection[int]) -> fx.Graph:
    """`backward` without what is computed of absent cotangents alone.

    Its last `count` placeholders are the cotangents; those at the places `absent` stay, and are
    not read. A gradient that is made of them alone is None.
    """
    graph, _ = copied_graph(backward)
    reach = reached_by(graph, count)
    lost = {node for node, places in reach.items() if places and places <= set(absent)}
    for node in list(graph.nodes):
        if node not in lost and any(one in lost for one in node.all_input_nodes):
            _leave_out(graph, node, lost)
    erase_dead(graph)
    graph.lint()
    return graph


def reached_by(backward: fx.Graph, count: int) -> dict[fx.Node, set[int]]:
    """For each node of a backward, the cotangents that it is made of, by their places."""
    placeholders = backward.find_nodes(op="placeholder")
    first = len(placeholders) - count
    reach = {node: {i - first} if i >= first else set[int]() for i, node in enumerate(placeholders)}
    for node in backward.nodes:
        if node.op != "placeholder":
            inside = [reach[one] for one in node.all_input_nodes] if _carries(node) else []
            reach[node] = set[int]().union(*inside)
    return reach


def _carries(node: fx.Node) -> bool:
    """Whether a node holds numbers that a cotangent can go through."""
    if node.op == "output" or op_name(node) in FRESH:
        return False
    leaves = [leaf for leaf in flat_leaves(held_value(node)) if isinstance(leaf, Tensor)]
    return any(leaf.is_floating_point() or leaf.is_complex() for leaf in leaves)


def _leave_out(graph: fx.Graph, node: fx.Node, lost: Collection[fx.Node]) -> None:
    """Let a node that is kept do without what is lost: a sum is its other term, else zeros do."""
    if node.op == "output":
        gradients: Any = node.args[0]
        node.args = (tuple(None if one in lost else one for one in gradients),)
        return
    terms = node.args[:2] if op_name(node) == "add" and not node.kwargs else ()
    rest = [one for one in terms if isinstance(one, fx.Node) and one not in lost]
    if len(rest) == 1 and same_kind(held_value(rest[0]), held_value(node)):
        node.replace_all_uses_with(rest[0])
        return
    with graph.inserting_before(node):
        for one in [one for one in node.all_input_nodes if one in lost]:
            zeros = graph.call_function(aten.zeros_like.default, (one,))
            zeros.meta = dict(one.meta)
            node.replace_input_with(one, zeros)
