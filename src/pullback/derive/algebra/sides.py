"""Both sides of a comparison: the hand-written and the derived gradients of one function.

Both are captured with symbols for their sizes, so that they can be read, and run, for sizes that
are small enough to compare every element.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from pullback.capture.fake import resized
from pullback.capture.joint import Capture, Input, capture
from pullback.capture.trees import flatten, unflatten
from pullback.derive.algebra.numerics import Point
from pullback.derive.algebra.scalars import Outside, Scalar, number, variable
from pullback.derive.algebra.symbols import Reading
from pullback.errors import CaptureError

SMALL, LARGE = 16, 64  # elements, in inputs and cotangents together: to prefer, and at most

Program = Callable[..., Any]
Key = int | str
"""Whose gradient: the place of an argument among the tensors, or the identity of a closure."""


class UnreadableError(Exception):
    """Two programs cannot be compared by expressions; the text is the reason."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One program, and its joint graph."""

    program: Program
    captured: Capture

    @property
    def outputs(self) -> list[int]:
        """The outputs that have a cotangent, by their places among what is returned."""
        return [place for place, output in enumerate(self.captured.outputs) if output.used]

    @property
    def keys(self) -> list[Key]:
        """Whose gradients the graph has, in its order."""
        return [key_of(place, i) for place, i in enumerate(self.captured.inputs) if i.needs]


def key_of(place: int, given: Input) -> Key:
    """What names an input on both sides."""
    return place if given.tensor is None else f"closure {id(given.tensor)}"


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """The hand-written side and the derived one, on the same examples."""

    hand: Side
    derived: Side
    tensors: tuple[Tensor, ...]

    @property
    def names(self) -> dict[Key, str]:
        """The inputs whose gradients are compared."""
        sides = (self.derived, self.hand)
        return {
            key_of(place, given): self.hand.captured.inputs[place].name
            if given.tensor is None
            else given.name
            for side in sides
            for place, given in enumerate(side.captured.inputs)
            if given.needs
        }

    @property
    def fixed(self) -> list[str]:
        """The names of inputs whose values are taken as they are."""
        taken = [i for i in self.hand.captured.inputs if i.kind == "closure"]
        whole = [
            self.hand.captured.inputs[place]
            for place, tensor in enumerate(self.tensors)
            if not tensor.is_floating_point()
        ]
        return [given.name for given in (*whole, *taken)]

    def views(self) -> Iterator[View]:
        """The two sides for sizes to compare them at: the best to prove at comes first.

        Raises `UnreadableError` if there are none.
        """
        found = 0
        seen: set[Any] = set()
        for grow in _ways(has_whole_numbers=any(not t.is_floating_point() for t in self.tensors)):
            view = self._view(grow)
            if view is None or view.shapes in seen or found == 2:
                continue
            if view.count > (SMALL if found == 0 and len(seen) == 0 else LARGE):
                continue
            seen.add(view.shapes)
            found += 1
            yield view
