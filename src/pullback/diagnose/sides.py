"""A captured graph with the values of its nodes in each trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.fake import numbers_of
from pullback.capture.joint import Capture
from pullback.diagnose.trial import Trial
from pullback.function.isolation import seeded
from pullback.graph.parts import JointGraph, calls

Values = dict[fx.Node, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A joint graph with the values of its nodes in each trial."""

    captured: Capture
    joint: JointGraph
    values: tuple[Values, ...]


def side_of(captured: Capture, joint: JointGraph, trials: Sequence[Trial]) -> Side:
    """`joint`, which is that of `captured` or a simpler form of it, run in every trial."""
    return Side(captured, joint, tuple(values_in(captured, joint, trial) for trial in trials))


def values_in(captured: Capture, joint: JointGraph, trial: Trial) -> Values:
    """The value of each node of `joint`, which takes what `captured` takes, in one trial."""
    row = [tensor.detach() for tensor in captured.row(trial.tensors)]
    pairs = zip(trial.cotangents, joint.cotangents, strict=True)
    with seeded(trial.number):
        return values_of(joint.graph, [*row, *(laid_out(c, node) for c, node in pairs)])


def values_of(graph: fx.Graph, row: Sequence[Any]) -> Values:
    """The value of each node, for these values of the placeholders."""
    values: Values = dict(zip(graph.find_nodes(op="placeholder"), row, strict=True))
    with torch.no_grad():
        for node in calls(graph):
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return values


def laid_out(cotangent: Tensor, node: fx.Node) -> Tensor:
    """`cotangent` in the memory order of the placeholder that it is given to."""
    strides = numbers_of(node.meta["val"].stride())
    order = sorted(range(len(strides)), key=lambda d: (-strides[d], d))
    dims = sorted(range(len(order)), key=order.__getitem__)
    return cotangent.permute(order).contiguous().permute(dims)
