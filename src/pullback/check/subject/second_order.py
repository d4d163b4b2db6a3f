"""Whether the second derivatives of a Function are right, beyond doubt.

`S = <backward(g), w>` is a number that depends on the inputs and on the cotangent `g`. Autograd
differentiates it through the user's backward; the truth is the derivative of forward taken twice,
and, whatever that says, differences of the user's own first-order gradient. A defect is believed
only where the differences contradict the user and do not contradict the reference.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.findings.facts import Cotangent, Input, Number, Second, numbers
from pullback.check.findings.finding import Rule, Skip
from pullback.check.subject.refusal import is_accident
from pullback.check.subject.subject import Subject, describe
from pullback.check.subject.twice import OnceError, leads_to_refusal, weighted_sum
from pullback.function.isolation import seeded
from pullback.judge.differences import UNKNOWN, Estimate, central, one_sided
from pullback.judge.example import Example, mapped, tensors_in
from pullback.judge.mismatch import index_of
from pullback.judge.reference import STEP
from pullback.judge.run import (
    BackwardFailedError,
    CallError,
    Raised,
    cotangent_of,
    cotangents_of,
    of_span,
)
from pullback.judge.tolerances import ALONG, ENTRY, ERRORS, KINK, SHARE, Tolerance, tolerance_for

DOUBTS = 3  # entries that are compared with differences before it is said to be right
SUBSETS = 4  # inputs that require grad alone in turn
ONCE = "@once_differentiable"  # as PyTorch says of a Function that the program calls
DRAW = 500  # the draws of the weights, apart from those of the cotangents


@dataclass(frozen=True, slots=True)
class Defect:
    """One second derivative that is wrong: which, where, what it must be and what it is.

    `name` is the input that it is taken by, or the place of the cotangent.
    """

    name: str
    thing: Second
    index: tuple[int, ...]
    expected: Number
    got: Number
    is_cut: bool
    example: Example


@dataclass(frozen=True, slots=True)
class SecondOrder:
    """What is wrong with the second derivatives, or why they were not looked at.

    `accident` is an error that says nothing of second derivatives; with `is_own` the first
    derivative is none of forward's, and the second was compared with differences of it alone.
    """

    defects: tuple[Defect, ...] = ()
    skip: str = ""
    raised: Raised | None = None
    accident: Raised | None = None
    is_own: bool = False

    def skipped(self, rule: Rule) -> Skip:
        """The skip of a rule that looks at them."""
        return Skip.refused(rule, self.skip, self.raised) if self.raised else Skip(rule, self.skip)


def second_order(subject: Subject) -> SecondOrder:
    """The second derivatives of a subject, looked at now or remembered."""
    if "second order" not in subject.trials:
        subject.trials["second order"] = [_looked_at(subject)]
    outcome: SecondOrder = subject.trials["second order"][0]
    return outcome


def _looked_at(subject: Subject) -> SecondOrder:
    target = subject.target
    if target.is_once_differentiable:
        return SecondOrder(skip="it is once differentiable, by decorator or declaration")
    if target.intent.nondeterministic:
        return SecondOrder(skip="it is declared to be nondeterministic")
    if target.intent.has_surrogate and not (target.is_function or target.is_op):
        return SecondOrder(skip="it calls a surrogate, which second derivatives go through")
    if subject.fails_at_base:
        return SecondOrder(skip="backward fails at the example", raised=subject.fails_at_base)
    if _gives_basis(subject):
        return SecondOrder(skip="an output is a basis, known up to a rotation that moves by chance")
    is_own = target.intent.has_surrogate or bool(subject.wrong_names)
    found: dict[str, Defect] = {}
    refusal: Raised | None = None
    accident: Raised | None = None
    for example, has_history in _ways(subject):
        if subject.time_is_up:
            break
        point = Point(subject, example, has_history, is_own)
        try:
            for defect in point.defects():
                found.setdefault(defect.name, defect)
        except (CallError, RuntimeError) as e:
            error = getattr(e, "error", e)
            refusal = refusal or describe(error)
            if is_accident(error) and example.needs == subject.small.needs:
                accident = accident or describe(error)
            if isinstance(error, OnceError) or ONCE in refusal.text:
                break  # it is so only where the cotangent has a history
        if found:
            break
    skip = "it refuses aloud" if refusal else ""
    return SecondOrder(tuple(found.values()), skip, refusal, accident, is_own)


def _gives_basis(subject: Subject) -> bool:
    called = subject.run(subject.small)
    drawn = cotangents_of(called.outputs, 0)
    return any(of_span(o, c) is not c for o, c in zip(called.outputs, drawn, strict=True))


def _ways(subject: Subject) -> Iterator[tuple[Example, bool]]:
    """With all inputs and the cotangent in the graph; the inputs alone; each input on its own."""
    example = subject.small
    yield example, True
    yield example, False
    if len(example.needs) > 1:
        for i in sorted(example.needs)[:SUBSETS]:
            label = f"only `{subject.names[i]}` requires grad"
            yield example.need(frozenset({i}), label), True


class Point:
    """One example at which second derivatives are taken.

    With `has_history` the cotangents require grad too, as they do inside a network. With `is_own`
    only the user's backward counts: forward has another first derivative.
    """

    def __init__(
        self, subject: Subject, example: Example, has_history: bool, is_own: bool = False
    ) -> None:
        self.subject = subject
        self.is_own = is_own
        self.example = example
        self.has_history = has_history
        called = subject.run(example)
        self.names = list(called.leaves)
        self.positions = {name: subject.names.index(name) for name in self.names}
        self.cotangents = subject.cotangents(called)
        self.live = [k for k, c in enumerate(self.cotangents) if c is not None]
        self.parts = subject.tangents(example)
        self.weights = [
            self._kept(cotangent_of(leaf, DRAW + i), self.names[i])
            for i, leaf in enumerate(called.leaves.values())
        ]

    def _kept(self, gradient: Tensor | None, name: str) -> Tensor | None:
        """The part of a gradient that counts, where an input keeps a form such as symmetry."""
        return None if gradient is None else self._part_of(gradient, name)

    def _part_of(self, gradient: Tensor, name: str) -> Tensor:
        part = self.parts.get(self.positions[name])
        return gradient if part is None else part(gradient)

    def _counted(self, found: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Second derivatives, those by inputs as far as they count."""
        names = [*self.names, *([""] * (len(found) - len(self.names)))]
        pairs = zip(found, names, strict=True)
        return [self._kept(one, name) if name else one for one, name in pairs]

    # ---- derivatives by autograd ----

    def of_user(self) -> list[Tensor | None]:
        """The second derivatives through the user's backward; raises what it raises."""
        called = self.subject.run(self.example)
        try:
            return self._twice(list(called.outputs), list(called.leaves.values()))
        except Exception as error:
            raise BackwardFailedError(error) from error

    def of_reference(self) -> list[Tensor | None] | None:
        """The same through forward as plain PyTorch; None where autograd cannot tell."""
        args = self.example.fresh()
        leaves = [args[i] for i in self.positions.values()]
        passed = tuple(mapped(arg, lambda t: t.clone() if t.requires_grad else t) for arg in args)
        try:
            with torch.enable_grad(), seeded(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs = tensors_in(self.subject.reference.program(*passed))
                if len(outputs) != len(self.cotangents):
                    return None
                if not any(outputs[k].requires_grad for k in self.live):
                    return None
                return self._twice(outputs, leaves)
        except Exception:  # forward cannot be run as plain ops: no truth to compare with
            return None

    def _twice(self, outputs: list[Tensor], leaves: list[Tensor]) -> list[Tensor | None]:
        given = [self._cotangent(k, outputs[k]) for k in self.live]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            used = [(outputs[k], g) for k, g in zip(self.live, given, strict=True)]
            used = [(output, g) for output, g in used if output.requires_grad]
            first = torch.autograd.grad(
                [output for output, _ in used],
                leaves,
                [g for _, g in used],
                create_graph=True,
                allow_unused=True,
            )
            if any(g is not None and leads_to_refusal(g) for g in first):
                raise OnceError(f"a Function is marked with {ONCE}")
            total = weighted_sum(first, self.weights)
            sources = [*leaves, *(given if self.has_history else [])]
            if total is None or not total.requires_grad:
                return [None] * len(sources)
            return list(torch.autograd.grad(total, sources, allow_unused=True))

    def _cotangent(self, k: int, output: Tensor) -> Tensor:
        cotangent = self.cotangents[k]
        assert cotangent is not None
        return cotangent.detach().to(output.dtype).requires_grad_(self.has_history)

    # ---- derivatives by differences ----

    def curve(self, source: int, along: Tensor) -> Callable[[float], float]:
        """`t -> S` with the `source`-th variable moved by `t` times `along`."""
        leaves = len(self.names)

        def value(t: float) -> float:
            args = list(self.example.fresh())
            cotangents = list(self.cotangents)
            if source < leaves:
                position = self.positions[self.names[source]]
                old = args[position]
                new = (old.detach() + t * along.to(old.detach())).requires_grad_()
                args = [new if arg is old else arg for arg in args]
            else:
                k = self.live[source - leaves]
                held = cotangents[k]
                assert held is not None
                cotangents[k] = held + t * along.to(held)
            call = self.subject.target.call
            called = self.subject.run_other(call, self.example, args=tuple(args))
            grads = called.pull(cotangents)
            total = weighted_sum([grads[name] for name in self.names], self.weights)
            return 0.0 if total is None else float(total.detach())

        return value

    def slope(self, source: int, along: Tensor) -> Estimate:
        """The derivative of S along one direction, unknown where S has a kink or a jump."""
        curve = self.curve(source, along)
        noise = self.subject.reference.noise_of(self.example)
        try:
            estimate = central(curve, STEP, noise)
            if not estimate.is_known:
                return UNKNOWN
            left, right = (one_sided(curve, STEP, noise, sign) for sign in (-1, 1))
        except Exception:  # a step leaves what forward serves
            return UNKNOWN
        if not (left.is_known and right.is_known):
            return UNKNOWN
        same = left.agrees(right.value, ERRORS * right.error + KINK * abs(right.value) + ENTRY)
        return estimate if same else UNKNOWN

    # ---- the verdict ----

    def defects(self) -> Iterator[Defect]:
        """The second derivatives that are wrong."""
        if not self.live or not self.names:
            return
        have = self._counted(self.of_user())
        want = None if self.is_own else self.of_reference()
        want = None if want is None else self._counted(want)
        if want is None:
            yield from self._by_differences(have)
            return
        for source, (got, right) in enumerate(zip(have, want, strict=True)):
            shape = self._shape(source)
            if right is None:
                device = got.device if got is not None else "cpu"
                right = torch.zeros(shape.shape, dtype=shape.dtype, device=device)
            if got is not None and got.shape != right.shape:
                continue
            excess = self._tolerance().measure(right).excess(got).contiguous()
            for _ in range(DOUBTS):
                worst = int(excess.flatten().argmax()) if excess.numel() else -1
                if worst < 0 or not float(excess.flatten()[worst]) > 0:
                    break
                defect = self._settled(source, worst, got, right)
                if defect is not None:
                    yield defect
                    break
                excess.view(-1)[worst] = -1.0

    def _settled(
        self, source: int, flat: int, got: Tensor | None, want: Tensor | None
    ) -> Defect | None:
        """A defect at one element, where differences prove it."""
        like = self._shape(source)
        for part in (1, 1j) if like.is_complex() else (1,):
            along = torch.zeros(like.shape, dtype=like.dtype)
            along.view(-1)[flat : flat + 1] = torch.tensor(part, dtype=like.dtype)
            if source < len(self.names):
                along = self._part_of(along, self.names[source])
            mine = 0.0 if got is None else _part(got.detach().flatten()[flat].item(), part)
            said = None if want is None else _part(want.detach().flatten()[flat].item(), part)
            estimate = self.slope(source, along)
            tolerance = self._tolerance()
            allowed = ALONG * (tolerance.relative * abs(estimate.value) + tolerance.floor) + ENTRY
            if not estimate.is_known or estimate.agrees(mine, allowed):
                continue
            if self.subject.target.intent.has_surrogate and not estimate.value:
                continue  # a backward of steps, whose own derivative is a surrogate too
            if said is not None and not estimate.agrees(said, allowed + SHARE * abs(said - mine)):
                continue
            return Defect(
                self.names[source] if source < len(self.names) else str(source - len(self.names)),
                self._thing(source),
                index_of(flat, like.shape),
                *numbers(estimate.value, mine),
                got is None or not bool((got != 0).any()),
                self.example,
            )
        return None

    def _by_differences(self, have: Sequence[Tensor | None]) -> Iterator[Defect]:
        """Without a reference: the largest entries, and some others, by differences alone."""
        for source, got in enumerate(have):
            like = self._shape(source)
            picks = list(range(min(like.numel(), 4)))
            if got is not None and got.numel() > 4:
                picks += [int(i) for i in got.detach().abs().flatten().topk(2).indices]
            for flat in picks:
                defect = self._settled(source, flat, got, None)
                if defect is not None:
                    yield defect
                    break

    def _shape(self, source: int) -> Tensor:
        if source < len(self.names):
            like = self.example.args[self.positions[self.names[source]]]
        else:
            like = self.cotangents[self.live[source - len(self.names)]]
        wide = torch.complex128 if like.is_complex() else torch.float64
        return torch.empty(like.shape, dtype=wide, device="meta")

    def _tolerance(self) -> Tolerance:
        eps = self.subject.reference.noise_of(self.example)
        return tolerance_for(max(eps, 1e-14), 8.0)

    def _thing(self, source: int) -> Second:
        if source < len(self.names):
            return Second(Input(self.names[source]))
        number = self.live[source - len(self.names)]
        return Second(Cotangent(number), is_only=len(self.cotangents) == 1)


def _part(value: complex | float, part: complex | float) -> float:
    if isinstance(value, complex):
        return value.imag if part == 1j else value.real
    return float(value)
