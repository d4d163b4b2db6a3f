"""Settle a graph: from symbolic sizes to those of one row, in the ops that a compiler takes.

The graph is run once on fake tensors that are laid out like the row. What it computes from sizes
becomes numbers, and ops that the compiler has no code for become those that they consist of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.fake import Stage, apart
from pullback.capture.joint import ONE_AT_A_TIME
from pullback.capture.modes import autocast_off
from pullback.capture.tidy import is_mutable
from pullback.capture.watch import Watcher
from pullback.graph.parts import calls

Decompositions = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """A graph without symbols, and fake arguments that it was made with."""

    module: fx.GraphModule
    arguments: tuple[Any, ...]
    stage: Stage


def settle(graph: fx.Graph, row: Sequence[Any], decompositions: Decompositions) -> Settled:
    """`graph` for arguments that are laid out exactly like `row`.

    Law: on such arguments it returns what `graph` returns, with the same strides. Its placeholders
    are those of `graph`, in their order; it changes nothing in place.
    """
    with ONE_AT_A_TIME, apart(Watcher), torch.inference_mode(False), torch.no_grad():
        with autocast_off():
            stage = Stage(dynamic=False)
            arguments = [stage.stand_in(v) if isinstance(v, Tensor) else v for v in row]
            return Settled(retraced(stage, graph, arguments, decompositions), (*arguments,), stage)


def retraced(
    stage: Stage, graph: fx.Graph, arguments: Sequence[Any], decompositions: Decompositions
) -> fx.GraphModule:
    """`graph` as it runs on the fake `arguments`, without changes in place."""
    module = _trace(stage, fx.GraphModule({}, graph), arguments, decompositions)
    if any(is_mutable(node) for node in calls(module.graph)):
        # Some decompositions fill a buffer step by step.
        function = torch.func.functionalize(_interpreted(module))
        module = stage.trace(function, arguments)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _trace(
    stage: Stage, module: fx.GraphModule, arguments: Sequence[Any], decompositions: Decompositions
) -> fx.GraphModule:
    return stage.trace(_interpreted(module), arguments, decompositions=decompositions)


def _interpreted(module: fx.GraphModule) -> Callable[..., Any]:
    return lambda *values: fx.Interpreter(module).run(*values)
