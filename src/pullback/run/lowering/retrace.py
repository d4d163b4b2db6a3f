"""A graph traced once more: for the layouts of one row, in the ops that a compiler takes.

The graph is run once on fake tensors that are laid out like the row. Ops that the compiler has no
code for become those that they consist of. Sizes become numbers, and so does what is computed from
them; or they are symbols again, and the graph serves other sizes too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.fake import Stage, apart
from pullback.capture.modes import autocast_off, one_at_a_time
from pullback.graph.cost import is_mutating
from pullback.graph.parts import calls

Decompositions = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True, slots=True, eq=False)
class RetracedGraph:
    """A graph for one way of laying out its arguments, and fake arguments of that layout."""

    module: fx.GraphModule
    arguments: tuple[Any, ...]
    stage: Stage


def retrace(
    graph: fx.Graph,
    row: Sequence[Any],
    decompositions: Decompositions,
    *,
    free_sizes: bool = False,
) -> RetracedGraph:
    """`graph` for arguments that are laid out like `row`, with other sizes too if they are free.

    On such arguments it returns what `graph` returns, with the same strides. Its placeholders are
    those of `graph`, in their order; it changes nothing in place.
    """
    with one_at_a_time(), apart(), torch.inference_mode(False), torch.no_grad():
        with autocast_off():
            stage = Stage(dynamic=free_sizes)
            arguments = [_stand_in(stage, value) for value in row]
            module = _traced(stage, graph, arguments, decompositions)
            return RetracedGraph(module, (*arguments,), stage)


def _stand_in(stage: Stage, value: Any) -> Any:
    if isinstance(value, Tensor):
        return stage.stand_in(value)
    return stage.number(value) if stage.dynamic else value


def _traced(
    stage: Stage, graph: fx.Graph, arguments: Sequence[Any], decompositions: Decompositions
) -> fx.GraphModule:
    run = _interpreted(fx.GraphModule({}, graph))
    module = stage.trace(run, arguments, decompositions=decompositions)
    if any(is_mutating(node) for node in calls(module.graph)):
        # Some decompositions fill a buffer step by step.
        module = stage.trace(torch.func.functionalize(_interpreted(module)), arguments)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _interpreted(module: fx.GraphModule) -> Callable[..., Any]:
    return lambda *values: fx.Interpreter(module).run(*values)
