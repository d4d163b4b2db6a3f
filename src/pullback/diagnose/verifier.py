"""Verifies an edit: the changed graph is run on inputs that the search has not seen.

An edit that is right on the trials it was found with may be so by chance: two sizes that are equal
there, a value that is one. It is named only if it is right on fresh values and other sizes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pullback.capture.joint import Capture
from pullback.diagnose.gradient_trial import GradientTrial
from pullback.diagnose.graph_values import values_in
from pullback.graph.parts import JointGraph


@dataclass(frozen=True, slots=True, eq=False)
class Verifier:
    """The user's Function, captured, and trials that no edit was searched with."""

    hand: Capture
    trials: Sequence[GradientTrial]

    def right(self, graph: JointGraph) -> frozenset[int]:
        """The places at which the gradients of a changed graph are right in every trial.

        Empty if a gradient that was right before is wrong now, or if there are no trials.
        """
        rows = [trial for trial in self.trials if self.hand.serves(trial.tensors)]
        places = set(range(len(graph.gradients))) if rows else set()
        for trial in rows:
            found = self._right_in(graph, trial)
            was_right = {place for place in range(len(trial.got)) if not trial.is_wrong(place)}
            if was_right - found:
                return frozenset()
            places &= found
        return frozenset(places)

    def _right_in(self, graph: JointGraph, trial: GradientTrial) -> set[int]:
        try:
            values = values_in(self.hand, graph, trial)
        except Exception:  # an op of any kind may refuse these sizes in any way
            return set()
        gradients = [values.get(node) for node in graph.gradients]
        return {place for place, got in enumerate(gradients) if trial.accepts(place, got)}
