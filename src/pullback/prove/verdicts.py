"""The verdict on each gradient: first by numbers, then by expressions."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from pullback.judge.mismatch import index_of
from pullback.judge.tolerances import DIFFERENT
from pullback.prove.compare import NotShown, compare_expressions
from pullback.prove.counterexamples import (
    Counterexample,
    CounterexampleSearch,
    GradientPair,
    gradient_pair,
)
from pullback.prove.numerics import fraction_between
from pullback.prove.programs import Key, View
from pullback.prove.regions import Region
from pullback.prove.scalars import Outside, Scalar, coefficients, form_of, known_number

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"
ROUNDS = (3, 1)  # of points: at the sizes to prove at, and at others


@dataclass(frozen=True, slots=True)
class Witness:
    """Numbers for every input and cotangent, at which a hand-written gradient is wrong.

    `expected` and `got` are element `index` of the gradient of `input`, derived and hand-written,
    as both programs give it in float64. Tensors are nested lists, as `Tensor.tolist` makes them.
    `setting` says what is asked for, if not everything: "only `x` needs a gradient".
    """

    input: str
    index: tuple[int, ...]
    inputs: dict[str, Any]
    cotangents: tuple[Any, ...]
    expected: float
    got: float
    setting: str = ""

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        given = [f"{name} = {value}" for name, value in self.inputs.items()]
        pulled = [f"cotangent = {value}" for value in self.cotangents]
        numbers = f"expected {self.expected:.6g}, got {self.got:.6g}"
        where = f" where {self.setting}" if self.setting else ""
        at = ", ".join([*given, *pulled])
        return f"gradient of `{self.input}`{place}{where}: {numbers} at {at}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one gradient.

    `provisos` belong to "proved": where the gradients are defined, and where nothing is shown.
    `reason` belongs to "unknown", `witness` to "refuted".
    """

    verdict: str
    provisos: tuple[str, ...] = ()
    reason: str = ""
    witness: Witness | None = None


class GradientProver:
    """Decides about the gradients of two programs, one after the other, at one or two sizes.

    `setting` is that of the witnesses it finds.
    """

    def __init__(
        self, views: Sequence[View], keys: Sequence[Key], deadline: float, setting: str = ""
    ) -> None:
        self.views = views
        self.keys = keys
        self.deadline = deadline
        self.setting = setting
        self.judgements: dict[Key, Judgement] = {}

    def run(self) -> dict[Key, Judgement]:
        """A judgement for each gradient."""
        pairs = zip(self.views, ROUNDS, strict=False)
        searches = [self._searched(view, rounds) for view, rounds in pairs]
        for key in self.keys:
            if key not in self.judgements:
                self.judgements[key] = self._judged(key, searches[0])
        return {key: self.judgements[key] for key in self.keys}

    # ---- by numbers ----

    def _searched(self, view: View, rounds: int) -> CounterexampleSearch:
        """Look for witnesses, and for what cannot be read."""
        pairs = {}
        for key in self.keys:
            hand, derived = self._read(view, key, "hand-written"), self._read(view, key, "derived")
            if hand is not None and derived is not None:
                pairs[key] = gradient_pair(hand, derived, view.outputs)
        search = CounterexampleSearch(view, pairs)
        search.run(rounds, self.deadline)
        for key in pairs:
            self._conclude(key, search)
        return search

    def _read(self, view: View, key: Key, side: str) -> list[Scalar] | None:
        try:
            return view.gradient(key, hand=side == "hand-written")
        except Outside as outside:
            fragment = "pointwise ops, sums and broadcasting"
            self._give_up(key, f"the {side} gradient uses {outside}; what is read is {fragment}")
            return None

    def _give_up(self, key: Key, reason: str) -> None:
        self.judgements.setdefault(key, Judgement(UNKNOWN, reason=reason))

    def _conclude(self, key: Key, search: CounterexampleSearch) -> None:
        """Judge what numbers can decide."""
        if key in self.judgements and self.judgements[key].verdict == REFUTED:
            return
        if key in search.found:
            self.judgements[key] = self._refuted(key, search)
        elif search.nearest[key] or key in search.misread:
            self._give_up(key, _doubt(search, key))
        elif search.view is self.views[0] and not (search.compared[key] and search.seen[key]):
            is_late = time.process_time() > self.deadline
            self._give_up(key, "time limit" if is_late else "no point found where both are defined")

    def _refuted(self, key: Key, search: CounterexampleSearch) -> Judgement:
        return Judgement(REFUTED, witness=_witness(search, key, search.found[key], self.setting))

    # ---- by expressions ----

    def _judged(self, key: Key, search: CounterexampleSearch) -> Judgement:
        view, provisos = search.view, list[str]()
        known = set()
        for hand, derived, domain in _obligations(search.pairs[key], view):
            form = form_of(hand, derived)
            if form in known:
                continue
            outcome = compare_expressions(hand, derived, self.deadline, domain)
            if isinstance(outcome, NotShown):
                return self._left_open(key, outcome, search)
            known |= set() if outcome.has_domain else {form}
            provisos += [view.without_indices(each) for each in outcome.provisos]
        return Judgement(PROVED, provisos=tuple(dict.fromkeys(provisos)))

    def _left_open(self, key: Key, outcome: NotShown, search: CounterexampleSearch) -> Judgement:
        """Look for a witness where the proof failed."""
        for point in _points_in(outcome.region, search.view.variables):
            search.attempt(point, [key])
            if key in search.found:
                return self._refuted(key, search)
        return Judgement(UNKNOWN, reason=search.view.without_indices(outcome.reason))


def _doubt(search: CounterexampleSearch, key: Key) -> str:
    """What numbers say that are neither equal nor surely different."""
    apart = search.nearest[key]
    if key in search.misread:
        return "in float64 the programs do not give what their formulas give"
    if apart > DIFFERENT:
        return "the formulas differ at some point, and float64 does not confirm it"
    return f"they differ by {apart:.1g} of their size: so little may be a rounded constant"


# ---- what must be shown ----

Obligation = tuple[Scalar, Scalar, Sequence[Scalar]]
"""Two expressions that must be equal where the others are defined."""


def _obligations(pair: GradientPair, view: View) -> Iterator[Obligation]:
    """All that must be shown of a gradient, one of each form.

    A gradient is linear in the cotangents, so that each coefficient is compared by itself; a
    hand-written one that is not linear is compared as a whole.
    """
    seen = set()
    of = frozenset(view.cotangent_variables)
    for hand, derived, domain in zip(pair.hand, pair.derived, pair.domains, strict=True):
        for each in _coefficients(hand, derived, of, view.outputs) or [(hand, derived, domain)]:
            form = form_of(each[0], each[1], *each[2])
            if each[0] is not each[1] and form not in seen:
                seen.add(form)
                yield each


def _coefficients(
    hand: Scalar, derived: Scalar, of: frozenset[Scalar], outputs: Mapping[Scalar, Scalar]
) -> list[Obligation]:
    left, right = coefficients(hand, of), coefficients(derived, of)
    if left is None or right is None:
        return []
    domains = {c: [outputs[c]] if c in outputs else [] for c in {**left, **right}}
    zero = known_number(0)
    return [(left.get(c, zero), right.get(c, zero), domain) for c, domain in domains.items()]


# ---- witnesses ----


def _points_in(region: Region | None, variables: Sequence[Scalar]) -> Iterator[dict[Any, Fraction]]:
    """Points in a region, as far as its symbols say what it is."""
    if region is None:
        return
    rng = random.Random(0)
    for size in map(Fraction, (1, 4, 30, 2**-6, 2**-13, 2**-20) * 3):
        others = {v: fraction_between(rng, -2, 2) for v in variables}
        inside = region.point(
            positive=partial(_scaled, rng, 0, size), real=partial(_scaled, rng, -1, size)
        )
        # Near enough: a point must be exact in a float.
        yield others | {v: Fraction(float(x)) for v, x in inside.items()}


def _scaled(rng: random.Random, low: int, size: Fraction) -> Fraction:
    return fraction_between(rng, low, 1) * size


def _witness(
    search: CounterexampleSearch, key: Key, difference: Counterexample, setting: str
) -> Witness:
    view = search.view
    arguments, cotangents = view.tensors_at(difference.point)
    names = [i.name for i in view.programs.hand.captured.inputs]
    return Witness(
        input=view.programs.names[key],
        index=index_of(difference.place, view.shape(key)),
        inputs={n: x.tolist() for n, x in zip(names, arguments, strict=False)},
        cotangents=tuple(c.tolist() for c in cotangents),
        expected=difference.expected,
        got=difference.got,
        setting=setting,
    )
