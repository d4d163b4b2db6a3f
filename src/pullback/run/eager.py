"""The eager backend: a graph as Python that calls torch's ops one after the other.

It always works, on every device, for every layout, and computes what eager mode computes, to the
bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from pullback.derive.recipe import compiled
from pullback.graph.names import Names
from pullback.run.backend import Backend
from pullback.run.node import Compiled


def absence() -> str | None:
    """It is always there."""
    return None


def specialise(
    graph: fx.Graph,
    row: Sequence[Any] = (),
    *,
    name: str,
    free_sizes: bool = True,
    program: str = "program",
    names: Names | None = None,
) -> Compiled:
    """`graph` as Python: it serves every row that the capture serves.

    `program` is what the user calls the program, and `names` are the user's names for the values:
    both are read in tracebacks.
    """
    function = compiled(graph, name, program, names or {})
    returned: Any = graph.output_node().args[0]
    if len(returned) == 1:
        return lambda row: (function(*row),)
    return lambda row: function(*row)


class _Eager(Backend):
    compiles = False

    def absence(self) -> str | None:
        return absence()

    def specialise(self, graph: fx.Graph, row: Sequence[Any], *, name: str, **_: Any) -> Compiled:
        return specialise(graph, row, name=name)


BACKEND = _Eager()
