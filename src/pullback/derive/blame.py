"""Where a hand-written backward goes wrong, by how much, by what pattern, and what mends it.

The truth is the forward: PyTorch's own derivative of it, on the examples and on fresh inputs, in
double precision. Where the forward hides a value from autograd (`detach`, NumPy), finite
differences decide. The user's backward is then changed in one place after another until its
gradient is right; the smallest change that does it is named.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.function import Function as TorchFunction

from pullback.capture.joint import Capture, capture
from pullback.derive.edits import Candidate, give, swap
from pullback.derive.held import held_in
from pullback.derive.mend import Edit, Mender, make_edited
from pullback.derive.numerals import refined
from pullback.derive.patterns_of_error import (
    LAST,
    PATTERNS,
    Evidence,
    constant_factor,
    factor,
    repairs,
    swapped_with,
    unexpected,
    unused_cotangent,
    within,
)
from pullback.derive.scope import (
    Scope,
    Side,
    add_derived,
    add_reductions,
    cotangent_names,
    scope_of,
    side_of,
)
from pullback.derive.trials import Trial, Trials, make_fitted
from pullback.errors import CaptureError
from pullback.function.signature import place_of
from pullback.function.slots import no_vjp
from pullback.graph.copies import copy_of, with_graph
from pullback.graph.dead import erase_dead
from pullback.graph.parts import JointGraph
from pullback.graph.rewrite import rewrite
from pullback.graph.simplify import EXACT, READABLE, simplify
from pullback.graph.spelling.expressions import ATOM
from pullback.graph.text import text_of

Number = float | complex | None


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong gradient.

    Arguments:
        input: The input whose gradient it is, by the user's name.
        element: The index of the worst element.
        expected: What the gradient should be there; None where no gradient flows.
        got: What backward gave there; None if it returned None, or something of another shape.
        wrong: How many elements are wrong.
        total: How many elements there are.
        pattern: What is the matter, in one sentence.
        edit: What makes it right, if that was found.
        place: Where in the user's backward, `file.py:line`.
    """

    input: str
    element: tuple[int, ...]
    expected: Number
    got: Number
    wrong: int
    total: int
    pattern: str
    edit: Edit | None
    place: str

    @property
    def off(self) -> float:
        """By how much the worst element is wrong."""
        return abs((self.got or 0) - (self.expected or 0))

    def __str__(self) -> str:
        at = f" at {list(self.element)}" if self.element else ""
        elements = "the element" if self.total == 1 else f"{self.wrong} of {self.total} elements"
        facts = {
            "at": self.place,
            "expected": f"{_written(self.expected)}{at}",
            "got": f"{_written(self.got)}, off by {self.off:.6g}; {elements} wrong",
            "fix": self.edit.text.replace("\n", "\n" + " " * 12) if self.edit else "",
        }
        if self.expected is None and self.got is None:  # of different shapes: nothing to compare
            del facts["expected"], facts["got"]
        lines = [f"the gradient of `{self.input}` is wrong: {self.pattern}"]
        lines += [f"  {label + ':':<10}{fact}" for label, fact in facts.items() if fact]
        return "\n".join(lines)


def _written(number: Number) -> str:
    return "None" if number is None else f"{number:.6g}"


def blame(target: Any, *examples: Any, seconds: float = 5.0) -> tuple[Fault, ...]:
    """What is wrong with the backward of `target`: one fault for each wrong gradient.

    The same call gives the same faults. A gradient that is meant to differ from the derivative, as
    that of a straight-through estimator, is reported too: what is meant is not known here.

    Arguments:
        target: A Function class, of PyTorch's or ours, with a backward.
        examples: Arguments to call it with; fresh inputs are drawn from their values. Gradients
            are looked at for the tensors that require grad, or, if none does, for all that can.
        seconds: How long to search for an edit.

    >>> class Double(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return 2 * x
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         return g
    >>> [fault] = blame(Double, torch.ones(3))
    >>> print(fault.pattern, "->", fault.edit)
    1/2 times what it should be -> multiply by 2
    """
    if not (isinstance(target, type) and issubclass(target, TorchFunction)):
        raise CaptureError(
            f"`{getattr(target, '__name__', target)}` must be a Function class to be blamed",
            got=type(target).__name__,
            fix="pass the class itself, and the arguments after it",
        )
    case = _Case(target, examples, seconds)
    return tuple(case.fault(place) for place in case.wrong)


class _Case:
    """A Function under suspicion, and everything found out about it."""

    def __init__(self, target: Any, examples: Sequence[Any], seconds: float) -> None:
        self.target: Any = target
        self.backward = target.backward if target.vjp is no_vjp else target.vjp
        self.trials = Trials(target, examples)
        self.derived = self._captured(self.trials.program)
        if self.derived is not None:
            self.trials.add_other_shapes(self.derived)
        names = cotangent_names(self.backward, self.trials.used)
        places = range(len(self.trials.names))
        evidence = [Evidence(self.trials, place, tuple(names)) for place in places]
        self.evidence = evidence
        self.wrong = [e.place for e in evidence if e.shown and not self._is_right_after_all(e)]
        self.looked_at = self.trials.all
        self.scope = self._scope() if self.wrong else None
        self.deadline = time.monotonic() + seconds
        self.found = dict(self._search())

    def in_time(self) -> bool:
        """Whether there is time left to search."""
        return time.monotonic() < self.deadline

    def _is_right_after_all(self, evidence: Evidence) -> bool:
        """Whether finite differences side with the user: forward hides something from autograd."""
        trial = evidence.shown[0]
        expected, got = trial.pair(evidence.place)
        if expected.shape != got.shape or expected.dtype not in (torch.float64, torch.complex128):
            return False
        element = _worst(expected, got, trial.wrong(evidence.place))
        slope = self.trials.slope(trial, evidence.place, element)
        apart = [abs(slope - complex(one[element])) for one in (expected, got)]
        return apart[1] <= 1e-4 * abs(slope) + 1e-8 and apart[0] > 1e-2 * abs(slope) + 1e-6

    # ---- graphs ----

    def _captured(self, program: Any, used: Sequence[bool] | None = None) -> Capture | None:
        for dynamic in (True, False):
            try:
                return capture(
                    program,
                    self.trials.examples,
                    needs=self.trials.needs,
                    used=used,
                    dynamic=dynamic,
                )
            except CaptureError:
                continue
        return None

    def _scope(self) -> Scope | None:
        """The user's graph beside the derived one, or None if they cannot be captured."""
        hand = self._captured(self._fitted())
        if hand is None or self.derived is None:
            return None
        self.cotangents = _matching_cotangents(hand, self.derived)
        used = _used(hand, self.derived)
        derived = self.derived if all(used) else self._captured(self.trials.program, used)
        if derived is None:
            return None
        self.derived = derived
        self.looked_at = [
            t for t in self.trials.all if hand.serves(t.tensors) and derived.serves(t.tensors)
        ]
        user = side_of(hand, _tidied(hand.joint), self.looked_at)
        if not self.looked_at or not self._is_faithful(user):
            return None  # a graph that does not run as its program does explains nothing
        return self._filled(user, derived)

    def _filled(self, user: Side, derived: Capture) -> Scope:
        scope = scope_of(user, self.trials.input_names, self.backward)
        scope.kept = tuple(self.trials.kept())
        aligned = self._aligned()
        self.sides = []
        for joint in (simplify(derived.joint, READABLE), derived.joint):
            side = side_of(derived, joint, aligned)
            self.sides.append(side)
            add_derived(scope, side, self.cotangents)
        add_reductions(scope)
        return scope

    def _aligned(self) -> list[Trial]:
        """The trials with the cotangents of the derived graph only."""
        return [
            replace(trial, cotangents=tuple(trial.cotangents[i] for i in self.cotangents))
            for trial in self.looked_at
        ]

    def _is_faithful(self, user: Side) -> bool:
        """Whether the graph gives what the user's backward gave."""
        for trial, values in zip(self.looked_at, user.values, strict=True):
            for got, node in zip(trial.got, user.joint.gradients, strict=False):
                found = values[node] if isinstance(node, fx.Node) else None
                is_fit = got is None or found is None or got.shape == found.shape
                if is_fit and not trial.agrees(got, found):
                    return False
        return True

    def _fitted(self) -> Any:
        """The user's Function; gradients of unfit shape are brought into shape, if possible."""
        ways = {}
        for place in self.wrong:
            found = next(iter(repairs(self.evidence[place])), None)
            if not self.evidence[place].has_shape() and found is not None:
                ways[self.trials.position(place)] = found[1]
        if all(self.evidence[place].has_shape() for place in self.wrong):
            return self.target.apply

        def fit(position: int, gradient: Tensor, shape: Sequence[Any]) -> Tensor:
            if position in ways:
                return ways[position](gradient, shape)
            return gradient.new_zeros(tuple(shape))

        return make_fitted(self.target, fit)

    # ---- edits ----

    def _search(self) -> Iterator[tuple[int, tuple[Candidate, Edit, str]]]:
        """For each wrong gradient the edit that mends it, with the pattern that it shows."""
        scope = self.scope
        if scope is None:
            return
        fit = [place for place in self.wrong if self.evidence[place].has_shape()]
        mender = Mender(scope, self.looked_at, frozenset(fit), self.deadline)
        found: dict[int, tuple[Candidate, Edit, str]] = {}
        for place in fit:
            self._add_numbers(scope, place)
            candidate = self._obvious(scope, place) or (
                None if place in found else mender.mend(place)
            )
            candidate = candidate or self._given(scope, place)
            if place in found or candidate is None:
                continue
            text, pattern = candidate.say()
            text = text or self._swap_words(place)
            graph = make_edited(scope, candidate)
            edit = Edit(text, candidate.kind != "derived", graph)
            for other in {place, *mender.fixes(candidate, place)}:
                found.setdefault(other, (candidate, edit, pattern))
        yield from found.items()

    def _obvious(self, scope: Scope, place: int) -> Candidate | None:
        if unexpected(self.evidence[place]):
            return give(scope, place, None)
        other = swapped_with(self.evidence[place])
        return swap(scope, place, other) if other is not None else None

    def _swap_words(self, place: int) -> str:
        names = [self.trials.names[p] for p in (place, swapped_with(self.evidence[place]) or 0)]
        one, two = sorted(names, key=self.trials.names.index)
        return f"return the gradient of `{one}` first, that of `{two}` after it"

    def _add_numbers(self, scope: Scope, place: int) -> None:
        """Make the factor that is missing one of the numbers to try."""
        number = constant_factor(self.evidence[place])
        if number and abs(number + 1) > 1e-6:
            scope.numbers.insert(0, refined(1 / number))

    def _given(self, scope: Scope, place: int) -> Candidate | None:
        """The derived gradient, returned instead of the user's."""
        node = self.sides[0].joint.gradients[place]
        known = scope.twins.get(node) if isinstance(node, fx.Node) else None
        if known is None:
            return None
        candidate = give(scope, place, known)
        if known.text.text != node.name:
            return candidate
        listing = self._listing(scope, self.sides[0].joint, place)
        return replace(candidate, say=lambda: (f"return what is derived:\n{listing}", ""))

    def _listing(self, scope: Scope, joint: JointGraph, place: int) -> str:
        """The derived gradient as a list of statements, in the user's variables."""
        graph, twins = copy_of(joint.graph)
        graph.output_node().args = ((twins[joint.gradients[place]],),)
        erase_dead(graph)
        own = {name: node for node, name in scope.names.items()}
        names = {}
        for node in joint.graph.nodes:
            known = scope.twins.get(node)
            if known is not None and known.text.text in own and twins[node].graph is graph:
                names[twins[node]] = known.text.text
        text = text_of(graph, names)
        return "\n".join([*text.statements, f"return {', '.join(text.returned)}"])

    # ---- faults ----

    def fault(self, place: int) -> Fault:
        """What is known about a wrong gradient."""
        evidence = self.evidence[place]
        trial = evidence.shown[0]
        expected, got = trial.pair(place)
        has_shape = expected.shape == got.shape
        element = _worst(expected, got, trial.wrong(place)) if has_shape else ()
        found = self.found.get(place)
        is_none = trial.got[place] is None or not has_shape
        return Fault(
            input=self.trials.names[place],
            element=element,
            expected=_number(expected, element) if has_shape else None,
            got=None if is_none else _number(got, element),
            wrong=int(trial.wrong(place).sum()),
            total=expected.numel(),
            pattern=self._said(evidence),
            edit=found[1] if found else self._shape_edit(evidence),
            place=self._place(place, found[0] if found else None),
        )

    def _said(self, evidence: Evidence) -> str:
        words, where = self._pattern(evidence), self._where(evidence)
        is_clear = "factor is missing" in words  # a missing mask says where
        return words if is_clear else words + where

    def _pattern(self, evidence: Evidence) -> str:
        sure = next((text for pattern in PATTERNS if (text := pattern(evidence))), "")
        candidate, _, words = self.found.get(evidence.place, (None, None, ""))
        kind = candidate.kind if candidate else ""
        if kind == "op" and " is taken " in words and sure == factor(evidence):
            return words  # the mean for the sum: more than a factor
        if kind == "value" and sure == unused_cotangent(evidence):
            return words  # the other cotangent is used
        if sure or (words and kind != "summand"):
            return sure or words
        held = self._held(evidence)
        last = next((text for pattern in LAST if (text := pattern(evidence))), "")
        return held or words or last or "it follows no simple pattern"

    def _held(self, evidence: Evidence) -> str:
        """What the user's backward takes for a constant."""
        scope = self.scope
        if scope is None or self.derived is None:
            return ""
        numbers = {trial.number for trial in evidence.shown}
        shown = [trial for trial in self._aligned() if trial.number in numbers]
        is_named = lambda node: not scope.twins[node].text.size  # noqa: E731
        held = held_in(self.derived, shown, evidence.place, is_named, self.in_time)
        if held is None:
            return ""
        where = f" in {_spelled(scope, held.user)}" if held.user else ""
        name = f"`{scope.twins[held.node].text.text}`"
        return f"the derivative of {name}{where} is missing, as if it were a constant"

    def _where(self, evidence: Evidence) -> str:
        """Which elements, and which sizes."""
        masks = []
        if self.scope is not None and len(self.looked_at) == len(self.trials.all):
            for known in self.scope.known:
                if known.is_tensor and known.values[0].dtype == torch.bool:
                    masks.append((known.text.text, known.values))
                    text = f"~{known.text.within(ATOM)}"
                    masks.append((text, tuple(~value for value in known.values)))
        first, shown = self.trials.all[0], evidence.shown[0]
        shapes = [list(tensor.shape) for tensor in shown.tensors]
        others = [list(tensor.shape) for tensor in first.tensors]
        sizes = f", for inputs of shape {shapes}" if shapes != others else ""
        return within(evidence, masks) + sizes.replace("[[", "[").replace("]]", "]")

    def _shape_edit(self, evidence: Evidence) -> Edit | None:
        """The edit for a gradient of unfit shape: the captured graph has it already."""
        if self.scope is None or evidence.has_shape() or not any(repairs(evidence)):
            return None
        node = self.scope.hand.joint.gradients[evidence.place]
        text = f"return {self.scope.written(node)}"
        return Edit(text, True, self.scope.hand.joint)

    def _place(self, place: int, candidate: Candidate | None) -> str:
        nodes = list(candidate.users) if candidate else []
        nodes += [self.scope.hand.joint.gradients[place]] if self.scope else []
        for node in nodes:
            if isinstance(node, fx.Node) and node.meta.get("place"):
                return str(node.meta["place"])
        return place_of(self.backward)


# ---- parts ----


def _tidied(joint: JointGraph) -> JointGraph:
    """`joint` without noise. Nothing is merged: each thing the user wrote can change by itself."""
    return with_graph(joint, rewrite(joint.graph, EXACT, joint.output_count).graph)


def _worst(expected: Tensor, got: Tensor, wrong: Tensor) -> tuple[int, ...]:
    """The index of the element that is off by most; one that is not finite is worst of all."""
    apart = (got - expected).abs()
    apart = torch.where(torch.isfinite(got), apart, torch.inf)
    apart = torch.where(wrong, apart, -1.0)
    flat = int(apart.argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), apart.shape))


def _number(tensor: Tensor, element: tuple[int, ...]) -> float | complex:
    number: float | complex = tensor[element].item()
    return number


def _matching_cotangents(hand: Capture, derived: Capture) -> list[int]:
    """For each cotangent that both have, its place among the user's."""
    used = [i for i, output in enumerate(hand.outputs) if output.used]
    pairs = zip(hand.outputs, derived.outputs, strict=False)
    both = [i for i, (a, b) in enumerate(pairs) if a.used and b.differentiable]
    return [used.index(i) for i in both]


def _used(hand: Capture, derived: Capture) -> list[bool]:
    """Which differentiable outputs of the derived graph have a cotangent: those the user's has."""
    flags = []
    for place, output in enumerate(derived.outputs):
        if output.differentiable:
            flags.append(place < len(hand.outputs) and hand.outputs[place].used)
    return flags


def _spelled(scope: Scope, node: fx.Node) -> str:
    known = scope.twins.get(node)
    return f"`{known.text.text}`" if known is not None else f"`{node.name}`"
