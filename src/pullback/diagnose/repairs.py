"""Finds, for each wrong gradient, the edit that makes it right.

An edit that follows from the numbers alone comes first, then the smallest change of the user's
backward that is right, then the derived gradient in its place. Each is verified before it is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import fx

from pullback.diagnose.candidate_edits import CandidateEdit, give, swap
from pullback.diagnose.comparison import BackwardComparison
from pullback.diagnose.edit_search import Edit, EditSearch, make_edited
from pullback.diagnose.error_patterns import (
    WrongGradient,
    constant_factor,
    shape_repairs,
    swapped_with,
    unexpected_gradient,
)
from pullback.diagnose.numerals import refined
from pullback.diagnose.verifier import Verifier
from pullback.judge.tolerances import PATTERN


@dataclass(frozen=True, slots=True, eq=False)
class GradientRepair:
    """An edit that was found, and what it says about the error.

    Arguments:
        edit: The edit.
        kind: What kind of change it is.
        pattern: The error, if the edit shows it.
        users: The nodes that are given a new operand.
    """

    edit: Edit
    kind: str = ""
    pattern: str = ""
    users: tuple[fx.Node, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class RepairSearch:
    """The search for the edits of one backward.

    Arguments:
        compared: The user's backward beside the derived one.
        wrong: The evidence for each wrong gradient, by its place.
        verifier: Says whether an edit holds on fresh inputs.
        deadline: When to stop searching.
    """

    compared: BackwardComparison
    wrong: Mapping[int, WrongGradient]
    verifier: Verifier
    deadline: float

    def find(self) -> dict[int, GradientRepair]:
        """For each wrong gradient, by its place, what repairs it."""
        shown = [place for place in self.wrong if self.compared.shows(place)]
        places = [place for place in shown if self.wrong[place].has_shape()]
        scope, trials = self.compared.scope, self.compared.trials
        search = EditSearch(scope, trials, frozenset(places), self.verifier, self.deadline)
        found: dict[int, GradientRepair] = {}
        for place in places:
            if place not in found:
                found = self._repaired(search, place) | found
        for place in set(shown) - set(places):
            repair = self._reshaped(self.wrong[place])
            found |= {place: repair} if repair else {}
        return found

    def _repaired(self, search: EditSearch, place: int) -> dict[int, GradientRepair]:
        """What repairs the gradient at `place`, also for the others that it repairs."""
        self._add_numbers(place)
        for find in (self._from_numbers, search.find, self._given):
            candidate = find(place)
            repaired = search.repaired(candidate, place) if candidate else frozenset()
            if candidate and repaired:
                text, pattern = candidate.say()
                graph = make_edited(self.compared.scope, candidate)
                edit = Edit(text, candidate.kind != "derived", graph)
                repair = GradientRepair(edit, candidate.kind, pattern, tuple(candidate.users))
                return dict.fromkeys(repaired, repair)
        return {}

    def _from_numbers(self, place: int) -> CandidateEdit | None:
        """The edit that follows from the numbers alone."""
        evidence, scope = self.wrong[place], self.compared.scope
        if unexpected_gradient(evidence):
            return give(scope, place, None)
        other = swapped_with(evidence)
        candidate = None if other is None else swap(scope, place, other)
        return candidate and replace(candidate, say=lambda: (_swap_words(evidence), ""))

    def _add_numbers(self, place: int) -> None:
        """Make the factor that is missing one of the numbers to try."""
        number = constant_factor(self.wrong[place])
        if number and abs(number + 1) > PATTERN:
            self.compared.scope.numbers.insert(0, refined(1 / number))

    def _given(self, place: int) -> CandidateEdit | None:
        """The derived gradient, returned instead of the user's."""
        compared = self.compared
        node = compared.readable.gradients[place]
        known = compared.scope.named.get(node) if isinstance(node, fx.Node) else None
        if known is None:
            return None
        candidate = give(compared.scope, place, known)
        if known.is_clear:
            return candidate
        text = f"return what is derived:\n{compared.listing(place)}"
        return replace(candidate, say=lambda: (text, ""))

    def _reshaped(self, evidence: WrongGradient) -> GradientRepair | None:
        """The repair of a gradient of the wrong shape: the captured graph has it corrected."""
        hand, place = self.compared.hand, evidence.place
        if place not in self.verifier.right(hand):
            return None
        if swapped_with(evidence) is not None:
            return GradientRepair(Edit(_swap_words(evidence), True, hand))
        if not any(shape_repairs(evidence)):
            return None
        written = self.compared.scope.written(hand.gradients[place])
        return GradientRepair(Edit(f"return {written}", True, hand))


def _swap_words(evidence: WrongGradient) -> str:
    """What to do about two gradients in each other's place."""
    other, names = swapped_with(evidence), evidence.trials.names
    one, two = sorted((evidence.place, evidence.place if other is None else other))
    return f"return the gradient of `{names[one]}` first, that of `{names[two]}` after it"
