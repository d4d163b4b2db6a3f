"""Values that a hand-written backward treats as constants, as if they were detached.

This is how a term of a gradient is usually lost: the mean that is subtracted, the second factor of
a product, the denominator of a softmax depend on the input too. The forward is differentiated with
one of its values detached; if that gives what the user's backward gives, that value is the one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.joint import Capture
from pullback.diagnose.gradient_trial import GradientTrial
from pullback.function.isolation import seeded
from pullback.graph.parts import FORWARD, JointGraph, calls, phase_of
from pullback.graph.values import is_smooth
from pullback.judge.run import pulled_gradients, used_outputs


@dataclass(frozen=True, slots=True)
class DetachedValue:
    """A node of the forward that is taken for a constant: everywhere, or where `user` uses it."""

    node: fx.Node
    user: fx.Node | None


def detached_value(
    captured: Capture,
    trials: Sequence[GradientTrial],
    place: int,
    is_named: Callable[[fx.Node], bool],
    in_time: Callable[[], bool],
) -> DetachedValue | None:
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


def _suspects(joint: JointGraph) -> Iterator[DetachedValue]:
    """Each value of the forward, the last first; then each use of one that has several."""
    forward = [n for n in calls(joint.graph) if phase_of(n) == FORWARD and is_smooth(n)]
    outputs = {node for node in joint.outputs if isinstance(node, fx.Node)}
    inner = [node for node in reversed(forward) if node not in outputs]
    yield from (DetachedValue(node, None) for node in inner)
    for node in [*inner, *joint.inputs]:
        users = [user for user in node.users if user in forward]
        if len(users) > 1 and is_smooth(node):
            yield from (DetachedValue(node, user) for user in users)


def _explains(captured: Capture, trial: GradientTrial, place: int, held: DetachedValue) -> bool:
    got = trial.got[place]
    found = _gradients(captured, trial, held)
    return got is not None and found is not None and trial.agrees(found[place], got)


def _gradients(captured: Capture, trial: GradientTrial, held: DetachedValue) -> Any:
    """The gradients through the forward, with one value detached; None where it cannot run."""
    row = [t.detach().clone() for t in captured.row(trial.tensors)]
    for tensor, one in zip(row, captured.inputs, strict=True):
        tensor.requires_grad_(one.needs)
    wanted = [tensor for tensor in row if tensor.requires_grad]
    try:
        with torch.enable_grad(), seeded(trial.number):
            values = _run_forward(captured.joint, row, held)
            indices = [o.index for o in captured.outputs if o.used and o.index is not None]
            outputs = [values[captured.joint.outputs[index]] for index in indices]
            return pulled_gradients(used_outputs(outputs, trial.cotangents), wanted)
    except RuntimeError:
        return None


def _run_forward(
    joint: JointGraph, row: Sequence[Tensor], held: DetachedValue
) -> dict[fx.Node, Any]:
    values: dict[fx.Node, Any] = dict(zip(joint.inputs, row, strict=True))
    for node in calls(joint.graph):
        if phase_of(node) != FORWARD:
            continue
        known = values
        if node is held.user:
            known = {**values, held.node: values[held.node].detach()}
        args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        values[node] = result.detach() if node is held.node and held.user is None else result
    return values
