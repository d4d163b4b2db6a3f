"""Which axes of a kernel one index serves: those that lie together in all tensors it touches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any

from torch import fx

from pullback.graph.cost import hint_of
from pullback.graph.cut_problem import ancestors
from pullback.triton_codegen.axes import CREATED, CUTS, PICKS, PUTS, SCATTERS, Axis
from pullback.triton_codegen.plan import Group, Kernel, KernelPlan, goals_of, holds_tensor


def merge_groups(plan: KernelPlan, layouts: Mapping[fx.Node, Sequence[tuple[Axis, Any]]]) -> None:
    """Merge neighbouring axes of each kernel that lie together in all tensors that it reads.

    `layouts` has for each tensor its axes and their strides as they were in the examples.
    """
    fixed = _fixed_axes(plan)
    for kernel in plan.kernels:
        if kernel.is_final:
            continue
        used = [layouts[n] for n in _touched(plan, kernel)]
        kernel.rows = _in_memory_order(kernel.rows, used)
        kernel.rows = _merged(kernel.rows, used, fixed)
        kernel.cols = _merged(kernel.cols, used, fixed)
    for kernel in plan.kernels:
        if kernel.is_final and kernel.source is not None and kernel.cols:
            kernel.cols = list(kernel.source.cols)


def _in_memory_order(
    groups: Sequence[Group], tensors: Sequence[Sequence[tuple[Axis, Any]]]
) -> list[Group]:
    """Rows as they follow each other in memory, in the first tensor that has all of them."""
    for tensor in tensors:
        strides = dict(tensor)
        if all(leaf in strides for group in groups for leaf in group.leaves):
            return sorted(groups, key=lambda group: -strides[group.leaves[-1]])
    return list(groups)


def _touched(plan: KernelPlan, kernel: Kernel) -> list[fx.Node]:
    """The tensors that a kernel reads or writes."""
    totals = plan.totals
    above = ancestors(goals_of(kernel), totals)
    found = [n for n in plan.graph.nodes if n in above and (n.op == "placeholder" or n in totals)]
    outputs = [store.output for store in kernel.stores]
    return list(dict.fromkeys([*filter(holds_tensor, found), *outputs]))


def _fixed_axes(plan: KernelPlan) -> set[Axis]:
    """Axes whose index is computed with: they are merged with no other."""
    found: set[Axis] = set()
    for node in plan.graph.nodes:
        is_cut = node.target in (*CUTS, *PUTS, *PICKS, *SCATTERS) or node.target is getitem
        is_index = node.target in CREATED and "arange" in str(node.target)
        if is_cut or is_index or "iota" in str(node.target) or "tri" in str(node.target):
            values = [node, *_sources(node)]
            for value in values:
                if value in plan.axes.dims:
                    found |= set(plan.axes.all_of(value)[-2:])
                    if node in plan.axes.dims:  # along which it is cut
                        found |= set(plan.axes.all_of(value)) ^ set(plan.axes.all_of(node))
    return found


def _sources(node: fx.Node) -> list[fx.Node]:
    """What a node reads; of a part of a split, what was split."""
    found = node.all_input_nodes
    if node.target is getitem and found[0].target in CUTS:
        return found[0].all_input_nodes
    return found


def _merged(
    groups: Sequence[Group], tensors: Sequence[Sequence[tuple[Axis, Any]]], fixed: set[Axis]
) -> list[Group]:
    leaves = [leaf for group in groups for leaf in group.leaves]
    merged: list[Group] = []
    for leaf in leaves:
        last = merged[-1] if merged else None
        is_free = last is not None and leaf not in fixed and last.leaves[-1] not in fixed
        if last is not None and is_free and all(_lie_together(last, leaf, t) for t in tensors):
            merged[-1] = Group((*last.leaves, leaf))
            continue
        merged.append(Group((leaf,)))
    return merged


def _lie_together(group: Group, leaf: Axis, tensor: Sequence[tuple[Axis, Any]]) -> bool:
    strides = dict(tensor)
    present = [axis in strides for axis in (*group.leaves, leaf)]
    if not any(present):
        return True
    return all(present) and strides[group.leaves[-1]] == strides[leaf] * hint_of(leaf.size)
