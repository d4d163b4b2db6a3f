"""The evidence of a plan: what was measured at each size, and what was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pullback.plan.choice import crossover, scores, weight_of
from pullback.plan.measurements import Measurement, PlanCandidate


@dataclass(frozen=True, slots=True)
class Sized:
    """The evidence at one size: the arguments in words, the measurements, and the choice."""

    size: int
    shapes: str
    rows: tuple[Measurement, ...]
    chosen: PlanCandidate

    @property
    def row(self) -> Measurement | None:
        """The row of the chosen candidate; None if nothing was measured."""
        return self.row_of(self.chosen)

    def row_of(self, candidate: PlanCandidate) -> Measurement | None:
        """The row of a candidate; None if it was not measured here."""
        return next((row for row in self.rows if row.candidate == candidate), None)


@dataclass(frozen=True, slots=True)
class PlanEvidence:
    """Everything that a plan knows, and what is written to its file.

    The size of a call is that of the argument called `argument`, at `place`. `refused` has the
    reason for each candidate that could not be built.
    """

    program: str
    objective: str | float
    sized: tuple[Sized, ...]
    place: int | None
    argument: str
    notes: tuple[str, ...]
    refused: Mapping[str, str]
    made_with: Mapping[str, Any]
    fingerprint: str
    signature: Any

    @property
    def chosen(self) -> tuple[PlanCandidate, ...]:
        """The chosen candidates, from small sizes to large ones."""
        found: list[PlanCandidate] = []
        for one in self.sized:
            if not found or found[-1] != one.chosen:
                found.append(one.chosen)
        return tuple(found)

    @property
    def borders(self) -> tuple[int, ...]:
        """The size from which on each chosen candidate, but the first, is used."""
        pairs = zip(self.sized, self.sized[1:], strict=False)
        return tuple(self.border(a, b) for a, b in pairs if a.chosen != b.chosen)

    def border(self, small: Sized, large: Sized) -> int:
        """The size from which on the choice of the larger size is used."""
        gains = (self._gain(small, small, large), self._gain(large, small, large))
        return crossover((small.size, large.size), gains)

    def _gain(self, at: Sized, small: Sized, large: Sized) -> float:
        """What the choice of the smaller size costs at a size, as a part of the other's."""
        cost = scores(at.rows, weight_of(self.objective))
        mine, other = at.row_of(small.chosen), at.row_of(large.chosen)
        return cost[mine] / cost[other] if mine and other else 1.0
