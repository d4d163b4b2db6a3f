"""Where inputs begin in their memory, for the few programs that can see it.

`x.storage_offset()` gives it, and `x.as_strided(size, stride, 1)` counts from the beginning of the
memory rather than from that of `x`. A capture of such a program holds for the offsets that it was
made with, and for no others.
"""

from __future__ import annotations

from torch import fx

from pullback.graph.cost import base_of
from pullback.graph.parts import JointGraph, calls

READS = ("storage_offset",)
"""The calls that give an offset away as a number."""


def counts_from_memory(joint: JointGraph) -> bool:
    """Whether an op of the graph counts from the beginning of the memory of an input."""
    inputs = set(joint.inputs)
    return any(
        _has_offset(node) and base_of(_source(node)) in inputs for node in calls(joint.graph)
    )


def _has_offset(node: fx.Node) -> bool:
    """Whether `node` is told where to begin (`as_strided` and its like)."""
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    if "storage_offset" not in names or not isinstance(node.args[0], fx.Node):
        return False
    place = names.index("storage_offset")
    given = node.args[place] if place < len(node.args) else node.kwargs.get("storage_offset")
    return given is not None


def _source(node: fx.Node) -> fx.Node:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source
