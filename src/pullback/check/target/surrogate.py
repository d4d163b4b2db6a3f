"""Gradients that are others than forward's on purpose, known by their shape, as an intent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pullback.check.target.target import Intent


class Shape(Enum):
    """By what a surrogate is known."""

    CONSTANT = "forward is piecewise constant"
    IDENTITY = "forward returns an input as it is"
    BOUND = "forward returns it or a bound, and backward asks for the sign of the cotangent"
    PASSED = "forward has bounds, and backward passes the cotangent on as it is"
    ROUNDED = "forward rounds, and backward passes the cotangents on as they are"
    SHAPED = "an argument is there for backward alone"
    DRAWN = "backward draws random numbers, and the gradient is their average"


@dataclass(frozen=True, slots=True)
class Surrogate:
    """An input whose gradient is a surrogate; `inside` names the Function that makes it one."""

    name: str
    shape: Shape | None
    inside: str = ""


def intent_with(intent: Intent, found: Sequence[Surrogate]) -> Intent:
    """The intent with these surrogates, as if they had been declared."""
    if any(s.shape is Shape.DRAWN for s in found):
        intent = replace(intent, nondeterministic=math.inf)
    one_by_one = (Shape.BOUND, Shape.PASSED, Shape.ROUNDED, Shape.SHAPED, Shape.DRAWN)
    if intent.surrogate is True or any(s.inside or s.shape not in one_by_one for s in found):
        return replace(intent, surrogate=True)
    return replace(intent, surrogate=(intent.surrogate or frozenset()) | {s.name for s in found})
