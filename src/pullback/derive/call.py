"""The gradients of one call of a derived Function.

They are those of the printed text, or of the program itself, run again (`second.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from pullback.capture.joint import Capture
from pullback.capture.modes import autocast_as, autocast_off
from pullback.capture.trees import flatten
from pullback.derive.recipe import DerivedCall
from pullback.derive.second import pull_again
from pullback.errors import CaptureError, DoubleBackwardError


def captured_gradients(
    call: DerivedCall,
    saved: Sequence[Any],
    given: Sequence[Any],
    wanted: Sequence[bool],
    *,
    can_repeat: Callable[[], bool],
) -> list[Tensor | None]:
    """One gradient per input of the capture, for what a call saved and its cotangents.

    `can_repeat` says whether the program would still do what it did.
    """
    gradients = _pulled_again(call, saved, given, wanted, can_repeat=can_repeat)
    if gradients is None:
        with autocast_off():
            if call.is_bare and torch.is_grad_enabled():
                saved = _with_history(call, saved)
            gradients = _pulled(call, saved, given, wanted)
    return gradients


def _pulled_again(
    call: DerivedCall,
    saved: Sequence[Any],
    given: Sequence[Any],
    wanted: Sequence[bool],
    *,
    can_repeat: Callable[[], bool],
) -> list[Tensor | None] | None:
    """The gradients by the program itself, run again; None where the text does it.

    The text is not differentiated where the inputs are still there. And it has a cotangent for
    every output: what a hand-written backward does without one, only the engine knows.
    """
    captured, record = call.recipe.captured, torch.is_grad_enabled()
    is_partial = captured.is_handwritten and any(c is None for c in given)
    if not record and not is_partial:
        return None
    row = call.inputs.find(saved)
    if row is None or not can_repeat():
        if is_partial:
            raise _partial(captured)
        if captured.cuts_history:
            raise _gone(captured)
        return None
    closures = [i for i, one in enumerate(captured.inputs) if one.kind != "argument"]
    program = _on_row(captured, call.recipe.program)
    draws = call.draws.again() if call.draws else nullcontext()
    with autocast_as(call.autocast), draws:
        return pull_again(program, row, given, closures=closures, wanted=wanted, record=record)


def _pulled(
    call: DerivedCall, saved: Sequence[Any], given: Sequence[Any], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients by the text; None for an input that only outputs without cotangent reach."""
    recipe = call.recipe
    absent = frozenset(place for place, cotangent in enumerate(given) if cotangent is None)
    if absent:
        pairs = zip(wanted, recipe.sources, strict=True)
        wanted = [want and not (flow and flow <= absent) for want, flow in pairs]
        given = [
            torch.zeros(shape, dtype=dtype, device=device) if cotangent is None else cotangent
            for cotangent, (shape, dtype, device) in zip(given, call.kinds(), strict=True)
        ]
    pulled: list[Tensor | None] = recipe.pull(
        saved[: recipe.saved_count], call.numbers, given, wanted, absent
    )
    return pulled


def _with_history(call: DerivedCall, saved: Sequence[Any]) -> Sequence[Any]:
    """What was saved, computed again from the inputs, to be differentiated.

    The text knows no hand-written rule of a second derivative: only the program does.
    """
    captured, row = call.recipe.captured, call.inputs.find(saved)
    if row is None or captured.is_handwritten:
        raise CaptureError(
            f"`{captured.name}`, which holds hand-written backwards, must be differentiated twice "
            "while all that it reads from outside it is as it was",
            got="something outside it that has changed since forward",
            fix="call it again, or pass what changes as an argument",
        )
    return call.recipe.run(row[: captured.argument_count])[1]


def _gone(captured: Capture) -> DoubleBackwardError:
    return DoubleBackwardError(
        f"`{captured.name}`, which detaches, must be run again to be differentiated twice: its ops "
        "do not tell what was detached",
        got="an argument, or something that it reads from outside it, that is gone or changed",
        fix="hold its arguments until then, or derive it with save='everything'",
    )


def _partial(captured: Capture) -> CaptureError:
    return CaptureError(
        f"`{captured.name}`, which holds hand-written backwards, must have a gradient for each of "
        "its outputs",
        got="an output that is not used, and no way to run it again: an input, or what it reads "
        "from outside it, has changed",
        fix="add the unused output, times zero, to what is differentiated",
    )


def _on_row(
    captured: Capture, program: Callable[..., Any]
) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """The program on the row of a capture's inputs, giving its differentiable outputs."""

    def run(row: Sequence[Tensor]) -> list[Tensor]:
        leaves = flatten(program(*captured.fill(row[: captured.argument_count])))[0]
        returned = [output for output in captured.outputs if output.returned]
        return [leaf for leaf, o in zip(leaves, returned, strict=True) if o.differentiable]

    return run
