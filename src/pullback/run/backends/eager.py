"""The eager backend: a graph as Python that calls torch's ops one after the other.

It always works, on every device, for every layout, and computes what eager mode computes, to the
bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from pullback.derive.recipe import printed_function
from pullback.run.backend import Backend
from pullback.run.nodes.node import Compiled


class EagerBackend(Backend):
    """Serves every row that the capture serves."""

    compiles = False

    def absence(self) -> str | None:
        """It is always there."""
        return None

    def specialise(self, graph: fx.Graph, row: Sequence[Any], *, name: str, **_: Any) -> Compiled:
        """`graph` as Python, whatever `row` is."""
        function = printed_function(graph, name, "program", {})
        return lambda row: function(*row)


BACKEND = EagerBackend()
