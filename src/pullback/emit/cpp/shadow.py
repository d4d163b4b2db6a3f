"""The graphs of a subject as a Python Function that does what the C++ will do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

from pullback.capture.joint import Capture
from pullback.derive.recipe import Parts, printed_function
from pullback.function.isolation import seed_torch
from pullback.function.slots import new_class
from pullback.graph.copies import copied_graph
from pullback.graph.parts import calls
from pullback.judge.observed import SEED, Call


def shadow_of(captured: Capture, parts: Parts) -> Call:
    """A call of that Function."""
    function = _shadow_class(captured, parts)

    def call(row: Sequence[Tensor]) -> list[Any]:
        seed_torch(SEED)
        made = iter(function.apply(*row))
        written = [o for o in captured.outputs if o.is_written]
        return [o.value if o.index is None else next(made) for o in written]

    return call


def _shadow_class(captured: Capture, parts: Parts) -> Any:
    forward = printed_function(parts.forward, "forward", captured.name, parts.names)
    backward = printed_function(parts.backward, "backward", captured.name, parts.names)
    count, saved = parts.joint.output_count, len(parts.cut.saved)
    returned = [o for o in captured.outputs if o.returned and o.index is not None]

    def run(ctx: Any, *row: Tensor) -> Any:
        values = forward(*row)
        ctx.save_for_backward(*values[count : count + saved])
        ctx.numbers = values[count + saved :]
        silent = [values[o.index] for o in returned if not o.differentiable]
        ctx.mark_non_differentiable(*silent)
        return tuple(values[o.index] for o in returned)

    def pull(ctx: Any, *cotangents: Any) -> Any:
        used = [c for c, o in zip(cotangents, returned, strict=True) if o.differentiable and o.used]
        gradients = iter(backward(*ctx.saved_tensors, *ctx.numbers, *used))
        return tuple(next(gradients) if one.needs else None for one in captured.inputs)

    space = {"forward": staticmethod(run), "backward": staticmethod(pull)}
    return new_class("Shadow", torch.autograd.Function, space)


def with_dtype(graph: fx.Graph, old: torch.dtype, new: torch.dtype) -> fx.Graph:
    """`graph` for inputs of another dtype."""
    copy, _ = copied_graph(graph)
    for node in calls(copy):
        node.args, node.kwargs = map_aggregate(
            (node.args, node.kwargs), lambda value: new if value is old else value
        )
    return copy
