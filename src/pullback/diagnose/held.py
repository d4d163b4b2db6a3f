"""Values that a hand-written backward takes for constants, as if they were detached.

The usual way to lose a summand: the mean that is subtracted, the second factor of a product, the
denominator of a softmax depend on the input too. The forward is differentiated with one value of it
detached; if that gives what the user's backward gives, that value is the one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.joint import Capture
from pullback.diagnose.trial import Trial
from pullback.function.isolation import seeded
from pullback.graph.parts import FORWARD, JointGraph, calls, phase_of
from pullback.graph.values import is_smooth


@dataclass(frozen=True, slots=True)
class Held:
    """A node of the forward that is taken for a constant: everywhere, or where `user` uses it."""

    node: fx.Node
    user: fx.Node | None


def held_in(
    captured: Capture,
    trials: Sequence[Trial],
    place: int,
    is_named: Callable[[fx.Node], bool],
    in_time: Callable[[], bool],
) -> Held | None:
    """What the gradient at `place` holds constant, if it is one thing in every trial.

    Of several it is a value that the user named, then the one nearest to the output, then a single
    use of one.
    """
    rank = lambda held: (held.user is not None, not is_named(held.node))  # noqa: E731
    for held in sorted(_suspects(captured.joint), key=rank):
        if not in_time():
            return None
        if all(_explains(captured, trial, place, held) for trial in trials):
            return held
    return None


def _suspects(joint: JointGraph) -> Iterator[Held]:
    """Each value of the forward, the last first; then each use of one that has several."""
    forward = [n for n in calls(joint.graph) if phase_of(n) == FORWARD and is_smooth(n)]
    outputs = {node for node in joint.outputs if isinstance(node, fx.Node)}
    inner = [node for node in reversed(forward) if node not in outputs]
    yield from (Held(node, None) for node in inner)
    for node in [*inner, *joint.inputs]:
        users = [user for user in node.users if user in forward]
        if len(users) > 1 and is_smooth(node):
            yield from (Held(node, user) for user in users)


def _explains(captured: Capture, trial: Trial, place: int, held: Held) -> bool:
    got = trial.got[place]
    found = _pulled(captured, trial, held)
    return got is not None and found is not None and trial.agrees(found[place], got)


def _pulled(captured: Capture, trial: Trial, held: Held) -> list[Tensor | None] | None:
    """The gradients through the forward, with one value detached."""
    joint = captured.joint
    row = [t.detach().clone() for t in captured.row(trial.tensors)]
    for tensor, one in zip(row, captured.inputs, strict=True):
        tensor.requires_grad_(one.needs)
    values: dict[fx.Node, Any] = dict(zip(joint.inputs, row, strict=True))
    try:
        with torch.enable_grad(), seeded(trial.number):
            _run_forward(joint, values, held)
            wanted = [t for t, one in zip(row, captured.inputs, strict=True) if one.needs]
            return _gradients(captured, trial, values, wanted)
    except RuntimeError:
        return None


def _run_forward(joint: JointGraph, values: dict[fx.Node, Any], held: Held) -> None:
    for node in calls(joint.graph):
        if phase_of(node) != FORWARD:
            continue
        is_here = node is held.user

        def look(arg: fx.Node, is_here: bool = is_here) -> Any:
            value = values[arg]
            return value.detach() if is_here and arg is held.node else value

        args, kwargs = fx.map_arg((node.args, node.kwargs), look)
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        values[node] = result.detach() if node is held.node and held.user is None else result


def _gradients(
    captured: Capture, trial: Trial, values: dict[fx.Node, Any], wanted: Sequence[Tensor]
) -> list[Tensor | None]:
    used = [o.index for o in captured.outputs if o.used and o.index is not None]
    outputs = [values[captured.joint.outputs[index]] for index in used]
    pairs = [
        (output, cotangent)
        for output, cotangent in zip(outputs, trial.cotangents, strict=True)
        if output.requires_grad
    ]
    if not pairs:
        return [None] * len(wanted)
    outputs, cotangents = [o for o, _ in pairs], [c for _, c in pairs]
    return list(torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True))
