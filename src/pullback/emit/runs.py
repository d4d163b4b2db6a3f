"""The graphs of a subject as functions and as a Function of Python's, and values to try them on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.joint import Capture
from pullback.derive.recipe import Parts, compiled
from pullback.function.slots import new_class

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}
"""How far two computations of the same may be apart, relative to the largest number in it."""


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


def random_like(like: Tensor, seed: int) -> Tensor:
    """A tensor of positive numbers of the kind of another."""
    generator = torch.Generator().manual_seed(seed)
    is_complex = like.is_complex()
    shape = (*like.shape, 2) if is_complex else like.shape
    row = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.25
    row = torch.view_as_complex(row) if is_complex else row
    return row.to(device=like.device, dtype=like.dtype)


def all_close(mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Whether two rows of values are equal but for rounding."""
    return len(mine) == len(theirs) and all(map(_close, mine, theirs))


def _close(a: Any, b: Any) -> bool:
    """Whether two values are equal but for rounding; no gradient is as good as zeros."""
    if a is None or b is None:
        some = b if a is None else a
        return some is None or not bool(some.detach().abs().max() > 0 if some.numel() else False)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.detach(), b.detach()
    if not (a.is_floating_point() or a.is_complex()):
        return bool(torch.equal(a, b))
    if not a.numel():
        return True
    real = a.real.dtype if a.is_complex() else a.dtype
    scale = float(b.abs().nan_to_num(0, 0, 0).max()) or 1.0
    bound = TOLERANCE.get(real, 1e-3)
    return bool(torch.allclose(a, b, rtol=bound, atol=bound * scale, equal_nan=True))
