"""Where inputs begin in their memory, for the few programs that can see it.

`x.storage_offset()` gives it, and `x.as_strided(size, stride, 1)` counts from the beginning of the
memory rather than from that of `x`. A capture of such a program holds for the offsets that it was
made with, and for no others.
"""

from __future__ import annotations

from torch import fx

from pullback.graph.cost import argument_of, base_of
from pullback.graph.parts import JointGraph, calls

READS = ("storage_offset",)
"""The calls that give an offset away as a number."""


def counts_from_memory(joint: JointGraph) -> bool:
    """Whether an op of the graph counts from the beginning of the memory of an input.

    That is what `as_strided` and its like do where they are given an offset.
    """
    inputs = set(joint.inputs)
    strided = [n for n in calls(joint.graph) if argument_of(n, "storage_offset") is not None]
    sources = [node.args[0] for node in strided]
    return any(isinstance(source, fx.Node) and base_of(source) in inputs for source in sources)
