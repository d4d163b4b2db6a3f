"""Proof that hand-written gradients are right, or numbers that show that one is wrong.

The hand-written and the derived gradient are read as expressions of the elements of the inputs and
cotangents. First they are compared at many points with fifty digits: a difference is a witness.
Then they are compared as expressions, case by case: no difference anywhere is a proof.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from torch.autograd.function import Function as TorchFunction

from pullback.derive.algebra.numerics import between
from pullback.derive.algebra.regions import Open, Region, compare
from pullback.derive.algebra.scalars import Outside, Scalar, coefficients, form_of, number
from pullback.derive.algebra.search import Difference, Pair, Search
from pullback.derive.algebra.sides import Key, Sides, UnreadableError, View, sides_of
from pullback.derive.plain import program_of

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"


@dataclass(frozen=True, slots=True)
class Witness:
    """Numbers for every input and cotangent, at which a hand-written gradient is wrong.

    `expected` and `got` are element `index` of the gradient of `input`, derived and hand-written,
    as both programs give it in float64. Tensors are nested lists, as `Tensor.tolist` makes them.
    """

    input: str
    index: tuple[int, ...]
    inputs: dict[str, Any]
    cotangents: tuple[Any, ...]
    expected: float
    got: float

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        given = [f"{name} = {value}" for name, value in self.inputs.items()]
        pulled = [f"cotangent = {value}" for value in self.cotangents]
        numbers = f"expected {self.expected:.6g}, got {self.got:.6g}"
        return f"gradient of `{self.input}`{place}: {numbers} at {', '.join([*given, *pulled])}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found out about one gradient.

    `provisos` belong to "proved": where the gradients are defined, and where nothing is shown.
    `reason` belongs to "unknown", `witness` to "refuted".
    """

    verdict: str
    provisos: tuple[str, ...] = ()
    reason: str = ""
    witness: Witness | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found out about a hand-written backward.

    `verdict` is "refuted" if one gradient is, otherwise "unknown" if one is, otherwise "proved".
    `gradients` has the judgement on each, by the name of the input. `scope` says for which shapes
    a proof holds.
    """

    name: str
    verdict: str
    gradients: dict[str, Judgement] = field(default_factory=dict)
    scope: str = ""
    reason: str = ""

    @property
    def witness(self) -> Witness | None:
        """Numbers that refute the first wrong gradient."""
        return next((j.witness for j in self.gradients.values() if j.witness is not None), None)

    @property
    def provisos(self) -> tuple[str, ...]:
        """Those of all gradients."""
        return tuple(dict.fromkeys(p for j in self.gradients.values() for p in j.provisos))

    def __str__(self) -> str:
        head = f"{self.name}: {self.verdict}"
        lines = [f"{head}, {self.scope}" if self.verdict == PROVED else head]
        lines += [f"  {self.reason}"] if self.reason and not self.gradients else []
        for name, judgement in self.gradients.items():
            lines.append(f"gradient of `{name}`: {judgement.verdict}")
            facts = [judgement.reason, *judgement.provisos]
            lines += [f"  {fact}" for fact in facts if fact]
            lines += [f"  {judgement.witness}"] if judgement.witness is not None else []
        return "\n".join(lines)


def prove(target: Any, *examples: Any, seconds: float = 10.0) -> Proof:
    """Decide whether the hand-written gradients of `target` are right for all inputs.

    Arguments:
        target: a Function class, whose truth is PyTorch's own derivative of its forward; or a pair
            of a program with a hand-written backward and a reference program.
        examples: arguments to call it with. Only kinds, ranks and settings matter, and values that
            show where the function is defined.
        seconds: how long to try; what is not decided by then is "unknown".

    A verdict is about real numbers, not about rounding: each op stands for its formula, and each
    float for the simplest number that rounds to it. A gradient is "refuted" by a witness which
    was seen in float64 too. It is "proved" if it is equal to the derived one wherever both are
    defined, but for what its provisos say: where one has a pole that the other has not, and corners
    or jumps at which nothing is shown (a set without volume, such as x = 0 for `relu`).

    If every op is pointwise and all tensors have one shape, a proof about each element holds for
    every shape. With sums and broadcasting a proof holds for the sizes in `scope`, small and as far
    as possible different from each other; other sizes are then compared by numbers only.
    """
    deadline = time.monotonic() + seconds
    name, hand, derived = _programs(target)
    try:
        sides = sides_of(hand, derived, examples)
        views = sides.views()
    except UnreadableError as error:
        return Proof(name, UNKNOWN, reason=str(error))
    judgements = _Proving(sides, views, deadline).run()
    verdicts = [judgement.verdict for judgement in judgements.values()]
    verdict = next((v for v in (REFUTED, UNKNOWN) if v in verdicts), PROVED)
    reasons = [f"gradient of `{n}`: {j.reason}" for n, j in judgements.items() if j.reason]
    return Proof(name, verdict, judgements, _scope(views), next(iter(reasons), ""))


def _programs(target: Any) -> tuple[str, Callable[..., Any], Callable[..., Any]]:
    """The name, the program with the hand-written backward, and the reference."""
    hand, reference = target if isinstance(target, tuple) and len(target) == 2 else (target, None)
    is_class = isinstance(hand, type) and issubclass(hand, TorchFunction)
    if not is_class and (reference is None or not callable(hand)):
        raise TypeError(
            "`prove` takes a Function class, or a pair of a program and its reference, "
            f"not {target!r}"
        )
    name = getattr(hand, "__name__", type(hand).__name__)
    program: Any = hand
    return name, program.apply if is_class else program, program_of(reference or hand)


def _scope(views: Sequence[View]) -> str:
    view = views[0]
    if view.hand.is_pointwise and view.derived.is_pointwise:
        return "for every shape that all inputs have"
    names = [i.name for i in view.sides.hand.captured.inputs]
    shapes = [f"{n} {list(s)}" for n, s in zip(names, view.shapes, strict=False)]
    return f"for shapes {', '.join(shapes)}"


# ---- one proof under way ----


class _Proving:
    """The gradients of two sides, judged one after the other."""

    def __init__(self, sides: Sides, views: Sequence[View], deadline: float) -> None:
        self.sides = sides
        self.views = views
        self.deadline = deadline
        self.judgements: dict[Key, Judgement] = {}

    def run(self) -> dict[str, Judgement]:
        """A judgement for each gradient."""
        searches = [self._searched(view) for view in self.views]
        for key in self.sides.names:
            if key not in self.judgements:
                self.judgements[key] = self._judged(key, searches[0])
        return {name: self.judgements[key] for key, name in self.sides.names.items()}

    def _searched(self, view: View) -> Search:
        """Look for witnesses, and for what cannot be read."""
        pairs = {}
        for key in self.sides.names:
            try:
                hand = view.gradient(key, hand=True)
                pairs[key] = Pair(hand, _derived(view, key))
            except Outside as outside:
                self._give_up(key, str(outside))
        search = Search(view, pairs)
        search.run()
        for key in pairs:
            self._conclude(key, search)
        return search

    def _give_up(self, key: Key, reason: str) -> None:
        self.judgements.setdefault(key, Judgement(UNKNOWN, reason=reason))

    def _conclude(self, key: Key, search: Search) -> None:
        """Judge what numbers can decide."""
        if key in self.judgements and self.judgements[key].verdict == REFUTED:
            return
        if key in search.found:
            witness = _witness(search.view, key, search.found[key])
            self.judgements[key] = Judgement(REFUTED, witness=witness)
        elif search.nearest[key]:
            self._give_up(key, f"a difference of {search.nearest[key]:.1g} that float64 cannot show")
        elif key in search.misread:
            self._give_up(key, "float64 does not give what the formulas give")
        elif not search.compared[key]:
            self._give_up(key, "no point found at which both are defined")

    # ---- as expressions ----

    def _judged(self, key: Key, search: Search) -> Judgement:
        view, provisos = search.view, list[str]()
        for hand, derived in _obligations(search.pairs[key], view.cotangent_variables):
            outcome = compare(hand, derived, self.deadline)
            if isinstance(outcome, Open):
                return self._left_open(key, outcome, search)
            provisos += [view.plainly(each) for each in outcome.provisos]
        provisos += [f"for the given values of `{name}`" for name in self.sides.fixed]
        return Judgement(PROVED, provisos=tuple(dict.fromkeys(provisos)))

    def _left_open(self, key: Key, outcome: Open, search: Search) -> Judgement:
        """Look for a witness where the proof failed."""
        for point in _points_in(outcome.region, search.view.variables):
            search.attempt(point, [key])
            if key in search.found:
                return Judgement(REFUTED, witness=_witness(search.view, key, search.found[key]))
        return Judgement(UNKNOWN, reason=search.view.plainly(outcome.reason))


def _derived(view: View, key: Key) -> list[Scalar]:
    return view.gradient(key, hand=False)


def _obligations(pair: Pair, cotangents: Sequence[Scalar]) -> Iterator[tuple[Scalar, Scalar]]:
    """The pairs of expressions that must be equal, one of each form.

    A gradient is linear in the cotangents, so that each coefficient is compared by itself; a
    hand-written one that is not linear is compared as a whole.
    """
    seen = set()
    of = frozenset(cotangents)
    for hand, derived in zip(pair.hand, pair.derived, strict=True):
        for both in _coefficients(hand, derived, of):
            form = form_of(*both)
            if both[0] is not both[1] and form not in seen:
                seen.add(form)
                yield both


def _coefficients(
    hand: Scalar, derived: Scalar, of: frozenset[Scalar]
) -> Iterator[tuple[Scalar, Scalar]]:
    left, right = coefficients(hand, of), coefficients(derived, of)
    if left is None or right is None:
        yield hand, derived
        return
    for cotangent in {**left, **right}:
        yield left.get(cotangent, number(0)), right.get(cotangent, number(0))


def _points_in(region: Region | None, variables: Sequence[Scalar]) -> Iterator[dict[Any, Fraction]]:
    """Points in a region, as far as its symbols say what it is."""
    if region is None:
        return
    rng = random.Random(0)
    for size in (1, 4, 30) * 4:
        point = region.point(lambda is_positive, size=size: between(rng, -size * (not is_positive), size))
        yield {v: between(rng, -2, 2) for v in variables} | {
            v: Fraction(float(x)) for v, x in point.items()
        }


def _witness(view: View, key: Key, difference: Difference) -> Witness:
    arguments, cotangents = view.tensors_at(difference.point)
    names = [i.name for i in view.sides.hand.captured.inputs]
    index: list[int] = []
    rest = difference.place
    for size in reversed(view.shape(key)):
        index.insert(0, rest % size)
        rest //= size
    return Witness(
        input=view.sides.names[key],
        index=tuple(index),
        inputs={n: x.tolist() for n, x in zip(names, arguments, strict=False)},
        cotangents=tuple(c.tolist() for c in cotangents),
        expected=difference.expected,
        got=difference.got,
    )
