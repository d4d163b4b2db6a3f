"""A captured graph with the values of its nodes in each trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pullback.capture.fake import numbers_of
from pullback.capture.joint import Capture
from pullback.capture.layouts import dense_cotangent, order_of
from pullback.diagnose.gradient_trial import GradientTrial
from pullback.function.isolation import seeded
from pullback.graph.parts import JointGraph, calls

Values = dict[fx.Node, Any]


@dataclass(frozen=True, slots=True, eq=False)
class GraphRun:
    """A joint graph with the values of its nodes in each trial."""

    captured: Capture
    joint: JointGraph
    values: tuple[Values, ...]


def run_graph(captured: Capture, joint: JointGraph, trials: Sequence[GradientTrial]) -> GraphRun:
    """`joint`, which is that of `captured` or a simpler form of it, run in every trial."""
    return GraphRun(captured, joint, tuple(values_in(captured, joint, trial) for trial in trials))


def values_in(captured: Capture, joint: JointGraph, trial: GradientTrial) -> Values:
    """The value of each node of `joint`, which takes what `captured` takes, in one trial."""
    row = [tensor.detach() for tensor in captured.row(trial.tensors)]
    for cotangent, node in zip(trial.cotangents, joint.cotangents, strict=True):
        strides = numbers_of(node.meta["val"].stride())
        row.append(dense_cotangent(cotangent, order_of(strides)))
    with seeded(trial.number):
        return node_values(joint.graph, row)


def node_values(graph: fx.Graph, row: Sequence[Any]) -> Values:
    """The value of each node, for these values of the placeholders."""
    values: Values = dict(zip(graph.find_nodes(op="placeholder"), row, strict=True))
    with torch.no_grad():
        for node in calls(graph):
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return values
