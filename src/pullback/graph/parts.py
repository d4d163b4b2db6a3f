"""A joint graph: forward and backward of a function in one `torch.fx` graph of aten ops.

The form that capture makes and every pass keeps:

- placeholders first: the inputs, then the cotangents of the differentiable outputs;
- then `call_function` nodes, functional aten (or custom) ops only, in an order that runs;
- one output node, whose argument is a flat tuple: the outputs, then the gradients of the inputs
  that need one, with `None` where an input has no gradient at all.

Each node carries in `meta`: `val` (a fake tensor, number or tuple of them; sizes may be symbolic),
and each `call_function` also `phase` ("forward" or "backward"), `unit` (the number of the unit it
came from, or None) and `place` (the user's `file.py:line`, or "").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True, slots=True)
class JointGraph:
    """A graph in the form above, with the two numbers that tell its parts apart."""

    graph: fx.Graph
    input_count: int
    output_count: int

    @property
    def placeholders(self) -> list[fx.Node]:
        """Every placeholder: inputs, then cotangents."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def inputs(self) -> list[fx.Node]:
        """The placeholders of the inputs."""
        return self.placeholders[: self.input_count]

    @property
    def cotangents(self) -> list[fx.Node]:
        """The placeholders of the cotangents."""
        return self.placeholders[self.input_count :]

    @property
    def returned(self) -> tuple[Any, ...]:
        """What the output node returns: nodes, `None`, or plain values."""
        return tuple(self.graph.output_node().args[0])  # type: ignore[arg-type]

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The outputs."""
        return self.returned[: self.output_count]

    @property
    def gradients(self) -> tuple[Any, ...]:
        """The gradients, in the order of the inputs that need one."""
        return self.returned[self.output_count :]


def calls(graph: fx.Graph) -> Iterator[fx.Node]:
    """The `call_function` nodes of `graph`, in order."""
    return (node for node in graph.nodes if node.op == "call_function")


def phase_of(node: fx.Node) -> str:
    """In which pass of the user's program `node` was made."""
    return str(node.meta.get("phase", FORWARD))
