"""Kernels that trust what they are given: inputs that do not fit make them read outside of tensors.

So they are never tried with sizes or numbers that nobody knows to be right.
"""

from __future__ import annotations

import operator

from torch import Tensor, fx

from pullback.capture.indices import is_index
from pullback.capture.joint import Capture
from pullback.graph.cost import is_opaque, op_name
from pullback.graph.cut_problem import ancestors
from pullback.graph.parts import calls
from pullback.graph.values import held_value
from pullback.judge.example import can_differ

UNCHECKED = (
    *("attention", "segment_reduce", "embedding_bag", "_fft_c2r", "cudnn", "miopen"),
    *("lu_unpack", "lu_solve", "ldl_solve"),
)
"""Parts of the names of ops with kernels that go by one size in memory of another."""

BY_NUMBERS = ("grid_sampler",)
"""The same of ops with kernels that make places in memory of real numbers, also of NaN."""


def is_unchecked(captured: Capture) -> bool:
    """Whether a kernel in a program may read or write outside of inputs whose sizes do not fit."""
    return any(map(_is_unchecked_call, calls(captured.joint.graph)))


def points_unchecked(captured: Capture) -> bool:
    """Whether such a kernel takes integers, given or made, which say where it reads or writes.

    Those that another such kernel made (the seed of an attention) are its own affair.
    """
    return any(
        is_index(value)
        for call in calls(captured.joint.graph)
        if _is_unchecked_call(call)
        for node in call.all_input_nodes
        if not _is_made_unchecked(node) and isinstance(value := held_value(node), Tensor)
    )


def points_by_numbers(captured: Capture) -> bool:
    """Whether a kernel that does not check them takes places in memory that are computed.

    From numbers that are not finite, or are larger than those of the example, it may read or write
    outside of its tensors.
    """
    numbers = {node for node in captured.joint.inputs if can_differ(node.meta["val"])}
    for call in calls(captured.joint.graph):
        if any(part in op_name(call) for part in BY_NUMBERS):
            return True
        made = [n for n in call.all_input_nodes if isinstance(held_value(n), Tensor)]
        places = [n for n in made if is_index(held_value(n)) and not _is_made_unchecked(n)]
        if _is_unchecked_call(call) and not numbers.isdisjoint(ancestors(places)):
            return True
    return False


def _is_unchecked_call(node: fx.Node) -> bool:
    return is_opaque(node) or any(part in op_name(node) for part in UNCHECKED)


def _is_made_unchecked(node: fx.Node) -> bool:
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return node.op == "call_function" and _is_unchecked_call(node)
