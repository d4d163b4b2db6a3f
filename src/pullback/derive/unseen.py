"""Does autograd see all that a `forward` does?

What `forward` does outside autograd (numpy, a kernel of its own, `no_grad`) has no gradient that
could be derived, and none would be silently wrong. Two questions are put to the function itself, by
running it at inputs nearby (`function.evidence`); nothing outside is changed by that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.function import evidence
from pullback.function.gradients import is_differentiable
from pullback.function.isolation import RandomState, isolated
from pullback.function.unwritten import listen, run_plainly


def unseen_in(cls: Any, args: Sequence[Any], outputs: Sequence[Any]) -> str:
    """A description of what `forward` does outside autograd; empty if it does nothing there.

    `outputs` are what `forward` gave with recording on. An output without a history must not move
    with the inputs that require grad, unless it is marked; and one with a history must move as it
    says, where not every op was seen. (Where each was, a `detach` among them is meant.)
    """
    moving = _moving(cls, args, outputs_without_history(outputs))
    if moving:
        name = "its output" if len(outputs) == 1 else f"output {moving[0]}"
        return f"`forward` computes {name} outside autograd (detach, no_grad, numpy, a kernel)"
    if not is_capturable(cls, args) and _is_contradicted(cls, args, outputs):
        return "`forward` moves otherwise than autograd sees (detach, no_grad, numpy, a kernel)"
    return ""


def outputs_without_history(outputs: Sequence[Any]) -> list[int]:
    """The places of the outputs that could carry a gradient and have no history."""
    return [
        place
        for place, leaf in enumerate(outputs)
        if isinstance(leaf, Tensor) and is_differentiable(leaf) and not leaf.requires_grad
    ]


def is_capturable(cls: Any, args: Sequence[Any]) -> bool:
    """Whether `forward` is made of ops that can all be recorded."""
    from pullback.capture.joint import capture  # heavy

    def program(*row: Any) -> Any:
        return run_plainly(cls, row)

    random = RandomState(args)
    try:
        capture(program, args)
    except Exception:  # whatever the reason, something was not recorded
        return False
    finally:
        random.restore()
    return True


def _moving(cls: Any, args: Sequence[Any], places: Sequence[int]) -> list[int]:
    """Those of the outputs at `places` that move with the inputs and are not marked."""
    if not places:
        return []
    marked: set[int] = set()
    run = _make_run(cls, args, places, marked)
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    found = evidence.moves_smoothly(run, tensors, range(len(places)))
    return [places[i] for i in found if places[i] not in marked]


def _is_contradicted(cls: Any, args: Sequence[Any], outputs: Sequence[Any]) -> bool:
    """Whether an output with a history moves otherwise than the history says."""
    places = [i for i, y in enumerate(outputs) if isinstance(y, Tensor) and y.requires_grad]
    run = _make_run(cls, args, places, set())
    tensors = [arg for arg in args if isinstance(arg, Tensor)]
    row = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
    with torch.enable_grad():
        values = run(row)
    linked = [i for i, value in enumerate(values) if value.requires_grad]
    return bool(evidence.contradicts(run, row, values, linked))


def _make_run(
    cls: Any, args: Sequence[Any], places: Sequence[int], marked: set[int]
) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """`forward` on other tensors, giving the outputs at `places`; notes those that it marks."""

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        given = iter(tensors)
        row = [next(given) if isinstance(arg, Tensor) else arg for arg in args]
        with isolated(row, 0):
            output, ctx = listen(cls, row)
        leaves = list(output) if isinstance(output, (tuple, list)) else [output]
        silent = ctx.get_non_differentiable()
        marked.update(i for i in places if any(leaves[i] is one for one in silent))
        return [leaves[i] for i in places]

    return run
