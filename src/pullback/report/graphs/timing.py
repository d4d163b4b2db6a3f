"""How long each node of a graph takes by itself, run one after the other on real tensors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.derive.recipe import Recipe
from pullback.graph.parts import JointGraph

ROUNDS = 5


class _Timed(fx.Interpreter):
    """Runs a graph, and notes the least time that each node took."""

    def __init__(self, graph: fx.Graph, device: torch.device) -> None:
        super().__init__(fx.GraphModule(torch.nn.Module(), graph))
        self.seconds: dict[str, float] = {}
        self._is_cuda = device.type == "cuda"

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        self._wait()
        start = time.perf_counter()
        result = super().run_node(n)
        self._wait()
        if n.op == "call_function":
            seconds = time.perf_counter() - start
            self.seconds[n.name] = min(seconds, self.seconds.get(n.name, seconds))
        return result

    def _wait(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize()


def seconds_of(recipe: Recipe, joint: JointGraph, tensors: Sequence[Tensor]) -> dict[str, float]:
    """The seconds of each node by its name; empty where the graph cannot be run so."""
    row = recipe.captured.row([tensor.detach() for tensor in tensors])
    try:
        with torch.no_grad():
            outputs, _, _ = recipe.run_row(row)
            cotangents = [torch.ones_like(outputs[place]) for place in recipe.live]
            device = row[0].device if row else torch.device("cpu")
            timed = _Timed(joint.graph, device)
            for _ in range(ROUNDS):
                timed.run(*row, *cotangents)
    except Exception:  # an op that does not run outside of its capture
        return {}
    return timed.seconds
