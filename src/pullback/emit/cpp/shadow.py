"""The graphs of a subject as a Function of PyTorch's, which does in Python what the C++ will do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.joint import Capture
from pullback.derive.observed import SEED, Call
from pullback.derive.recipe import Parts, compiled
from pullback.function.isolation import seed_torch
from pullback.function.slots import new_class


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
    forward = _function_of(parts.forward, "forward", captured, parts)
    backward = _function_of(parts.backward, "backward", captured, parts)
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


def _function_of(graph: fx.Graph, name: str, captured: Capture, parts: Parts) -> Callable[..., Any]:
    """A graph as a function that gives a row."""
    call = compiled(graph, name, captured.name, parts.names)
    is_one = len(graph.output_node().args[0]) == 1  # type: ignore[arg-type]
    return lambda *given: (call(*given),) if is_one else tuple(call(*given))


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
