"""A recipe: how to run a captured program forward, what to save, and how to run it backward.

A capture is simplified, cut into what is saved and what is computed again, split into a forward
and a backward graph, and each is printed as a Python function and compiled. What runs is the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.joint import Capture
from pullback.errors import InternalError
from pullback.graph.cut import Cut, cut
from pullback.graph.names import names_of
from pullback.graph.parts import JointGraph
from pullback.graph.simplify import EXACT, READABLE, simplify
from pullback.graph.split import split
from pullback.graph.text import function_text


@dataclass(frozen=True, slots=True)
class Parts:
    """A captured program in two graphs, and what goes from one to the other.

    `forward` takes the inputs and returns the outputs and what is saved; `backward` takes what is
    saved and the cotangents, and returns the gradients of the inputs that need one.
    """

    joint: JointGraph
    cut: Cut
    forward: fx.Graph
    backward: fx.Graph
    names: Mapping[fx.Node, str]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A capture, compiled."""

    captured: Capture
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    saved_count: int
    number_count: int

    def run(self, tensors: Sequence[Tensor]) -> tuple[list[Any], list[Tensor], list[Any]]:
        """Outputs, saved tensors and saved numbers, for these tensors as arguments."""
        count = self.captured.joint.output_count
        total = count + self.saved_count + self.number_count
        values = _row(self.forward(*self.captured.row(tensors)), total)
        end = count + self.saved_count
        return list(values[:count]), list(values[count:end]), list(values[end:])

    def pull(
        self, saved: Sequence[Any], numbers: Sequence[Any], cotangents: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """One gradient per input of the capture; None where it needs or has none."""
        values = self.captured.joint.cotangents
        laid = [_laid_out(c, node) for c, node in zip(cotangents, values, strict=True)]
        needs = [one.needs for one in self.captured.inputs]
        pulled = iter(_row(self.backward(*saved, *numbers, *laid), sum(needs)))
        return [next(pulled) if needed else None for needed in needs]


def parts_of(captured: Capture, save: str | int, *, readable: bool = False) -> Parts:
    """The program of a capture, simplified, cut and split."""
    joint = simplify(captured.joint, READABLE if readable else EXACT)
    if not isinstance(joint, JointGraph):
        raise InternalError("simplify must give back what it was given", got=type(joint).__name__)
    free = frozenset(i for i, one in enumerate(captured.inputs) if one.free)
    chosen = cut(joint, save, free=free)
    forward, backward = split(joint, chosen)
    given = tuple(one.name for one in captured.inputs)
    needed = [i for i, one in enumerate(captured.inputs) if one.needs]
    names = names_of(joint, captured.local_names, given, differentiated=needed)
    return Parts(joint, chosen, forward, backward, names)


def recipe_of(captured: Capture, save: str | int) -> Recipe:
    """The program of a capture, compiled."""
    parts = parts_of(captured, save)
    return Recipe(
        captured=captured,
        forward=_compiled(parts.forward, "forward", captured.name, parts.names),
        backward=_compiled(parts.backward, "backward", captured.name, parts.names),
        saved_count=len(parts.cut.saved),
        number_count=len(parts.cut.numbers),
    )


def _row(value: Any, count: int) -> tuple[Any, ...]:
    """What a printed function returned, as a row: one value is returned as it is."""
    return (value,) if count == 1 else tuple(value)


def _compiled(
    graph: fx.Graph, name: str, program: str, names: Mapping[fx.Node, str]
) -> Callable[..., Any]:
    text = function_text(graph, name, names)
    space: dict[str, Any] = {"torch": torch}
    exec(compile(text, f"<derived {name} of {program}>", "exec"), space)
    function: Callable[..., Any] = space[name]
    return function


def _laid_out(cotangent: Tensor, node: fx.Node) -> Tensor:
    """`cotangent` in the memory order that the graph was captured with."""
    value = node.meta["val"]
    if value.is_contiguous():
        return cotangent.contiguous()
    order = sorted(range(value.dim()), key=lambda d: -int(value.stride(d)))
    if cotangent.permute(order).is_contiguous():
        return cotangent
    return cotangent.permute(order).contiguous().permute(_inverse(order))


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(d) for d in range(len(order))]
