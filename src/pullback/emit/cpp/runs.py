"""The graphs of a subject as functions and as a Function of Python's, and values to try them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.joint import Capture
from pullback.derive.recipe import Parts, compiled
from pullback.function.slots import new_class


def functions_of(captured: Capture, parts: Parts) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The graphs as functions, each of which gives a row."""

    def made(graph: fx.Graph, name: str) -> Callable[..., Any]:
        call = compiled(graph, name, captured.name, parts.names)
        is_one = len(graph.output_node().args[0]) == 1  # type: ignore[arg-type]
        return lambda *given: (call(*given),) if is_one else tuple(call(*given))

    return made(parts.forward, "forward"), made(parts.backward, "backward")


def twin_of(captured: Capture, parts: Parts) -> Any:
    """A Function of PyTorch's that runs the graphs, as the emitted one will."""
    forward, backward = functions_of(captured, parts)
    count = parts.joint.output_count
    places = [o.index for o in captured.outputs if o.returned and o.index is not None]
    saved = len(parts.cut.saved)

    def run(ctx: Any, *row: Tensor) -> Any:
        values = forward(*row)
        ctx.save_for_backward(*values[count : count + saved])
        ctx.numbers = values[count + saved :]
        returned = [o for o in captured.outputs if o.returned and o.index is not None]
        silent = [values[o.index] for o in returned if not o.differentiable]
        ctx.mark_non_differentiable(*silent)
        return tuple(values[place] for place in places)

    def pull(ctx: Any, *cotangents: Any) -> Any:
        returned = [o for o in captured.outputs if o.returned and o.index is not None]
        used = [c for c, o in zip(cotangents, returned, strict=True) if o.differentiable and o.used]
        gradients = iter(backward(*ctx.saved_tensors, *ctx.numbers, *used))
        return tuple(next(gradients) if one.needs else None for one in captured.inputs)

    space = {"forward": staticmethod(run), "backward": staticmethod(pull)}
    return new_class("Twin", torch.autograd.Function, space)


# ---- values ----


def with_dtype(graph: fx.Graph, old: torch.dtype, new: torch.dtype) -> fx.Graph:
    """`graph` for inputs of another dtype."""
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    for node in copy.nodes:
        if node.op == "call_function":
            node.args, node.kwargs = _replaced((node.args, node.kwargs), old, new)
    return copy


def _replaced(value: Any, old: Any, new: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(item, old, new) for item in value)
    return new if value is old else value
