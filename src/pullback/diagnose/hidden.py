"""What a forward really does, by differences: for values that it hides from autograd.

A forward that detaches, goes through NumPy or calls a kernel of its own gives autograd nothing to
differentiate, or too little. Its slopes then decide whether the user's backward is right.
"""

from __future__ import annotations

from dataclasses import dataclass

from pullback.diagnose.trial import Trial
from pullback.diagnose.trials import Trials
from pullback.judge.mismatch import flat_of, index_of
from pullback.judge.reference import FINEST
from pullback.judge.tolerances import HIDDEN, HIDDEN_ROUGHLY, largest

SPOTS = 24
"""How many elements of a gradient are compared with slopes."""


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
    slopes = trials.slopes(trial, place)
    is_exact = slopes.reference.noise_of(slopes.exact) <= FINEST and not trials.is_rough
    near = HIDDEN if is_exact else HIDDEN_ROUGHLY
    floor = near.scaled * largest(got) + near.floor

    def slope_of(element: tuple[int, ...]) -> complex | None:
        found = slopes.entry(flat_of(element, expected.shape), certain=near.relative)
        return None if found is None else complex(found)

    def is_near(slope: complex, number: complex) -> bool:
        return abs(slope - number) <= near.relative * abs(slope) + floor

    worst = trial.worst(place)
    slope = slope_of(worst)
    if slope is None or is_near(slope, complex(expected[worst])):
        return None
    count = expected.numel()
    spots = range(0, count, max(1, count // SPOTS))
    elements = dict.fromkeys([worst, *(index_of(flat, expected.shape) for flat in spots)])
    slopes_at = {element: slope_of(element) for element in elements}
    apart = {
        element: abs(found - complex(got[element]))
        for element, found in slopes_at.items()
        if found is not None and not is_near(found, complex(got[element]))
    }
    if not apart:
        return Hidden(None, slope, 0, len(slopes_at))
    element = max(apart, key=apart.__getitem__)
    return Hidden(element, slopes_at[element] or 0, len(apart), len(slopes_at))
