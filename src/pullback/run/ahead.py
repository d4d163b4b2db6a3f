"""Graphs compiled ahead of time: without Python whatever stands between their kernels.

Inductor compiles each graph as a library of its own, with all that goes on between the kernels.
That takes a C++ compiler some ten seconds per graph more than backend "native" needs, which reads
what goes on between them from Python and runs it in C++ where it is simple (`wrapper.py`). Here
nothing has to be simple.

It serves a CPU. For a GPU the same call gave a library that crashed when PyTorch's own runner
loaded it (torch 2.11, CUDA 13.0), so graphs for other devices go the way of backend "native".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.joint import ONE_AT_A_TIME
from pullback.errors import CaptureError
from pullback.run import native
from pullback.run.cache import Entry, entry
from pullback.run.inductor import origin_of
from pullback.run.lower import decompositions, lower_ahead
from pullback.run.native import absence, extension, make_node, whole
from pullback.run.node import Compiled
from pullback.run.settle import Settled, settle

__all__ = ["absence", "make_node", "specialise", "whole"]

_COPIES = 4  # of a graph, each of which one thread at a time runs


def specialise(
    graph: fx.Graph, row: Sequence[Any], *, name: str, free_sizes: bool = False
) -> Compiled:
    """As `inductor.specialise`, for one layout without any Python; others as backend "native"."""
    tensors = [value for value in row if isinstance(value, Tensor)]
    if free_sizes or not all(tensor.device.type == "cpu" for tensor in tensors):
        return native.specialise(graph, row, name=name, free_sizes=free_sizes)
    with ONE_AT_A_TIME, entry(f"ahead {origin_of(graph, row, name, free_sizes)}") as place:
        facts = place.facts()
        path = place.folder / facts["path"] if facts else _built(place, graph, row, name)
        taken = [i for i, value in enumerate(row) if isinstance(value, Tensor)]
        results: Any = graph.output_node().args[0]
        return extension().ahead(str(path), "cpu", _COPIES, taken, len(results))  # type: ignore[no-any-return]


def _built(place: Entry, graph: fx.Graph, row: Sequence[Any], name: str) -> Path:
    place.empty()
    try:
        settled = settle(graph, row, decompositions())
        module, arguments = _without_numbers(settled, row)
        path = lower_ahead(module, arguments, place.folder)
    except Exception as error:
        place.empty()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise CaptureError(
            f"the {name} graph must be one that Inductor compiles ahead of time",
            got=f"{type(error).__name__}: {lines[0] if lines else ''}",
        ) from error
    place.seal({"path": str(path.relative_to(place.folder))})
    return path


def _without_numbers(settled: Settled, row: Sequence[Any]) -> tuple[fx.GraphModule, list[Tensor]]:
    """The graph with tensors as its only arguments: a settled one does not read the numbers."""
    copy = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    places = iter(row)
    for node in settled.module.graph.nodes:
        if node.op != "placeholder" or isinstance(next(places), Tensor):
            twins[node] = copy.node_copy(node, twins.__getitem__)
    tensors = [value.detach() for value in row if isinstance(value, Tensor)]
    with torch.no_grad():
        return fx.GraphModule(settled.module, copy), tensors
