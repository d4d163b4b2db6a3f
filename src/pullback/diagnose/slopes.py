"""What a forward really does, by finite differences: for values that it hides from autograd.

A forward that detaches, goes through NumPy or calls a kernel of its own gives autograd nothing to
differentiate, or too little. Its slopes then decide whether the user's backward is right. They are
taken at many elements, so each takes three values only, and counts if both sides of it agree.
"""

from __future__ import annotations

import cmath
from dataclasses import dataclass

import torch

from pullback.diagnose.measured import PRECISE, Trial
from pullback.diagnose.trials import Trials
from pullback.judge.reference import inner

SPOTS = 24
"""How many elements of a gradient are compared with slopes."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How wide a step is, how far both sides may differ, and how near is near enough."""

    width: float
    bend: float
    near: float


_FINE, _COARSE = Scale(1e-6, 1e-3, 1e-4), Scale(5e-3, 1e-1, 3e-2)


@dataclass(frozen=True, slots=True)
class Hidden:
    """What slopes say about a gradient that autograd does not see whole.

    `element` is the worst where the user's gradient is not the slope, None if there is none;
    `slope` is that there; `wrong` is how many there are of `total` that were looked at.
    """

    element: tuple[int, ...] | None
    slope: complex
    wrong: int
    total: int


def hidden(trials: Trials, trial: Trial, place: int) -> Hidden | None:
    """What slopes say, if they contradict autograd where the user's gradient does; else None."""
    expected, got = trial.pair(place)
    worst = trial.worst(place)
    scale = _scale(trials, trial)
    slope = slope_of(trials, trial, place, worst)
    floor = scale.near * 1e-2 * max(1.0, float(got.abs().nan_to_num(0, 0, 0).max()))

    def is_near(one: complex, number: complex) -> bool:
        return abs(one - number) <= scale.near * abs(one) + floor

    if slope is None or is_near(slope, complex(expected[worst])):
        return None
    elements = dict.fromkeys([worst, *_spread(tuple(expected.shape))])
    slopes = {element: slope_of(trials, trial, place, element) for element in elements}
    apart = {
        element: abs(found - complex(got[element]))
        for element, found in slopes.items()
        if found is not None and not is_near(found, complex(got[element]))
    }
    if not apart:
        return Hidden(None, slope, 0, len(slopes))
    element = max(apart, key=apart.__getitem__)
    return Hidden(element, slopes[element] or 0, len(apart), len(slopes))


def slope_of(trials: Trials, trial: Trial, place: int, element: tuple[int, ...]) -> complex | None:
    """The derivative by an element of an input; None at a kink, or where it is not finite."""
    scale = _scale(trials, trial)
    is_complex = trial.tensors[trials.places[place]].is_complex()
    total = 0j
    for step in (1, 1j) if is_complex else (1,):
        behind, ahead = _sides(trials, trial, place, element, step * scale.width)
        if abs(ahead - behind) > scale.bend * (abs(ahead) + abs(behind)) + scale.width:
            return None
        total += step * (ahead + behind) / 2
    return total if cmath.isfinite(total) else None


def _scale(trials: Trials, trial: Trial) -> Scale:
    dtypes = {tensor.dtype for tensor in (*trial.tensors, *trial.cotangents)}
    floats = {dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex}
    return _FINE if floats <= {*PRECISE} and not trials.is_rough else _COARSE


def _sides(
    trials: Trials, trial: Trial, place: int, element: tuple[int, ...], step: complex
) -> tuple[float, float]:
    """The slopes to the left and to the right of an element."""
    position = trials.places[place]
    tensor = trial.tensors[position]
    width = step * max(1.0, float(tensor[element].abs()))
    values = []
    for sign in (-1, 0, 1):
        moved = tensor.clone()
        moved[element] += sign * width
        row = [*trial.tensors[:position], moved, *trial.tensors[position + 1 :]]
        _, outputs = trials.forward(trials.program, row, trial.number)
        pairs = zip([outputs[i] for i in trials.used], trial.cotangents, strict=True)
        values.append(sum(float(inner(c, o)) for o, c in pairs))
    return (values[1] - values[0]) / abs(width), (values[2] - values[1]) / abs(width)


def _spread(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Some elements of a tensor, from the first to the last."""
    count = int(torch.Size(shape).numel())
    step = max(1, count // SPOTS)
    flat = torch.arange(0, count, step)
    rows = torch.stack(torch.unravel_index(flat, shape), 1) if shape else torch.zeros(1, 0)
    return [tuple(int(i) for i in row) for row in rows]
