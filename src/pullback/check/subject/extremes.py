"""Gradients at unusual values: wrong, not finite where the truth is, or more than can be at a tie.

The judge accepts any slope between the two sides of a kink, entry by entry. At ties that is not
enough: where all tied entries move together the function is often smooth, and the gradients must
add up to its slope. And the judge says nothing where PyTorch's own gradient is not finite; here
differences are asked whether the function is smooth after all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pullback.capture.seeds import normal, uniform_like
from pullback.check.subject.refusal import is_meant
from pullback.check.subject.subject import Subject
from pullback.check.subject.trials import TriedVariant, is_finite, trials
from pullback.check.watching.dispatch import foreign_calls
from pullback.judge.differences import Estimate
from pullback.judge.example import Example, can_differ, wide_of
from pullback.judge.mismatch import Mismatch, index_of
from pullback.judge.reference import STEP
from pullback.judge.run import BackwardFailedError, ForwardRefusedError, Run, copies_of
from pullback.judge.slopes import Slopes
from pullback.judge.tolerances import FAINT, FAITHFUL, GUARDED, SMOOTH, STEEP, TIED, TIED_AT_ZERO

Cotangents = Sequence["Tensor | None"]
Gradients = dict[str, "Tensor | None"]
SINGULAR = "_LinAlgError"  # what PyTorch raises for a matrix without an inverse
STEPS = (STEP, 1e-7, 1e-10)  # of differences: as usual, and below the guards of divisions
LOOKS = 4  # so many entries that are not finite are looked at


@dataclass(frozen=True, slots=True)
class ValueDemand:
    """What is asked at the values of one family.

    Without `values`, only gradients that are not finite count: at the ends of a dtype rounding
    spoils what is finite. Nothing is said where the true gradient is beyond `steep`. With `ties`,
    tied entries are moved together. With `used`, only these outputs have a cotangent.
    """

    ties: bool = False
    values: bool = True
    steep: float = STEEP
    used: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PulledValues:
    """A call at such values, and the gradients that backward gave for the cotangents."""

    subject: Subject
    called: Run
    cotangents: Cotangents
    grads: Gradients

    def wrong_at(
        self, name: str, flat: int, expected: complex | float, wrong: Tensor, want: Tensor
    ) -> Mismatch:
        """A gradient that is another than expected at an entry, as it is where `wrong` holds."""
        have = self.grads[name]
        assert have is not None
        position, index = self.called.names.index(name), index_of(flat, have.shape)
        got, count = have.detach().flatten()[flat].item(), int(wrong.sum())
        return Mismatch(name, position, index, expected, got, count, have.numel(), want, have)


def value_trials(
    subject: Subject, family: str, variants: Iterable[Example], demand: ValueDemand | None = None
) -> list[TriedVariant]:
    """The trials of one family of values, run now or remembered."""
    asked = demand or ValueDemand()
    return trials(subject, family, variants, lambda example: _trial(subject, example, asked))


def _trial(subject: Subject, example: Example, demand: ValueDemand) -> TriedVariant | None:
    try:
        called = subject.run(example)
    except ForwardRefusedError:
        return None
    if not called.live:
        return None
    cotangents, used = subject.cotangents(called), demand.used
    if used is not None:
        cotangents = tuple(c if k in used else None for k, c in enumerate(cotangents))
    try:
        # Also where forward is not finite: it must not end us.
        grads = called.pull(copies_of(cotangents))
    except BackwardFailedError as failure:
        is_served = not (type(failure.error).__name__ == SINGULAR or is_meant(failure.error))
        is_served = is_served and is_finite(called) and _is_served(subject, example, cotangents)
        return TriedVariant(example, failure=failure.raised, used=used) if is_served else None
    if not is_finite(called):
        return None
    pulled = PulledValues(subject, called, cotangents, grads)
    return TriedVariant(example, tuple(_wrong(pulled, demand).values()), used=used)


def _wrong(pulled: PulledValues, demand: ValueDemand) -> dict[str, Mismatch]:
    """The gradients that are wrong, by their inputs."""
    found: dict[str, Mismatch] = {}
    if demand.values:
        called, cotangents = pulled.called, pulled.cotangents
        most = demand.steep * max(_largest(cotangents), 1.0)
        judged = pulled.subject.mismatches(called, cotangents, pulled.grads, at_once=True)
        judged = [m for m in judged if abs(m.expected) <= most and not _is_faint(m, cotangents)]
        found = {m.name: m for m in judged}
    for more in not_finite(pulled, demand):
        found.setdefault(more.name, more)
    if found:
        return found
    ties = beyond_ties(pulled.subject, pulled.called.example) if demand.ties else None
    return {m.name: m for m in (lost_at_infinity(pulled) if ties is None else ties)}


def _is_served(subject: Subject, example: Example, cotangents: Cotangents) -> bool:
    """Whether PyTorch's own gradient of forward is there, and finite."""
    usual = subject.reference.gradients(example, cotangents, tuple(sorted(example.needs)))
    found = [g for g in (usual or {}).values() if g is not None]
    return bool(found) and all(bool(torch.isfinite(g.detach()).all()) for g in found)


def _is_faint(mismatch: Mismatch, cotangents: Cotangents) -> bool:
    """Whether a gradient is off by next to nothing: what is left where large numbers cancel."""
    if mismatch.got is None:
        return abs(mismatch.expected) <= FAINT * _largest(cotangents)
    return abs(mismatch.expected - mismatch.got) <= FAINT * _largest(cotangents)


def _largest(cotangents: Cotangents) -> float:
    return max((float(c.abs().max()) for c in cotangents if c is not None and c.numel()), default=0)


# ---- not finite ----


def not_finite(pulled: PulledValues, demand: ValueDemand) -> Iterator[Mismatch]:
    """Gradients that are NaN or infinite where forward's own are finite, or forward is smooth.

    Without `values`, only where forward's own are finite: at the ends of a dtype that is all one
    can ask.
    """
    spoiled = _spoiled(pulled)
    if not spoiled or not _is_faithful(pulled.subject, pulled.called):
        return
    truths = _Truths(pulled, demand, spoiled)
    for name in spoiled:
        found = truths.contradicted(name)
        if found is not None:
            yield found


def _spoiled(pulled: PulledValues) -> dict[str, Tensor]:
    """The gradients that are not finite, of those that are asked for."""
    leaves, intent = pulled.called.leaves.values(), pulled.subject.target.intent
    has_numbers = all(bool(torch.isfinite(x.detach()).all()) for x in leaves)
    return {
        name: grad
        for name, grad in pulled.grads.items()
        if grad is not None
        and not bool(torch.isfinite(grad.detach()).all())
        and (has_numbers or not intent.is_surrogate(name))
    }


class _Truths:
    """What gradients must be, at entries where backward gives nothing that is finite."""

    def __init__(
        self, pulled: PulledValues, demand: ValueDemand, spoiled: dict[str, Tensor]
    ) -> None:
        self._pulled, self._demand, self._spoiled = pulled, demand, spoiled
        reference, called = pulled.subject.reference, pulled.called
        self._wide = tuple(None if c is None else wide_of(c) for c in pulled.cotangents)
        self._exact = called.example.double()
        places = tuple(called.names.index(name) for name in spoiled)
        self._want = reference.gradients(self._exact, self._wide, places) or {}
        self._eager = reference.gradients(called.example, pulled.cotangents, places) or {}

    def contradicted(self, name: str) -> Mismatch | None:
        """The first entry of a gradient that is not finite and must be."""
        position, grad = self._pulled.called.names.index(name), self._spoiled[name]
        bad = ~torch.isfinite(grad.detach())
        for flat in bad.flatten().nonzero()[:LOOKS, 0].tolist():
            truth = _finite(self._want.get(position), flat)
            own = _finite(self._eager.get(position), flat)
            if truth is None or own is None:
                if not self._can_be_asked(position, flat, truth):
                    return None
                truth = self._slope(position, flat)
            elif self._jumps(position, flat, truth):
                continue
            if truth is not None and abs(truth) <= self._limit(name, flat, own):
                return self._pulled.wrong_at(name, flat, truth, bad, grad)
        return None

    def _can_be_asked(self, position: int, flat: int, truth: complex | float | None) -> bool:
        """Whether forward may be asked for a slope that PyTorch does not give."""
        x = self._exact.args[position]
        is_tiny = not x.is_complex() and float(x.flatten()[flat].abs()) < 1
        is_known = truth is not None and is_tiny  # huge ones are not asked beyond autograd
        is_asked = self._demand.values or is_known
        return is_asked and _is_inside(self._pulled.subject, self._exact, self._wide)

    def _slope(self, position: int, flat: int) -> complex | float | None:
        if self._exact.args[position].is_complex():
            return None
        slopes = Slopes(self._pulled.subject.reference, self._exact, self._wide, position)
        return slopes.entry(flat, certain=SMOOTH)

    def _jumps(self, position: int, flat: int, truth: complex | float) -> bool:
        x = self._exact.args[position]
        unit = torch.zeros(x.shape, dtype=wide_of(x).dtype)
        unit.view(-1)[flat] = 1
        point = self._exact, self._wide, {position: unit}
        reference = self._pulled.subject.reference
        return jumps(partial(reference.sides, *point), reference.curve(*point), truth)

    def _limit(self, name: str, flat: int, own: complex | float | None) -> float:
        """How large a true gradient may be that is asked for.

        An overflow beside a pole is no defect; a quotient of zeros is one, which PyTorch's own
        gradient has not.
        """
        grad, x = self._spoiled[name], self._pulled.called.leaves[name]
        limit: float = torch.finfo(grad.dtype).max / 16
        is_nan = bool(grad.detach().flatten()[flat].isnan())
        is_quotient = is_nan and own is not None and not bool(x.detach().flatten()[flat])
        return limit if is_quotient else min(self._demand.steep * _largest(self._wide), limit)


def _is_faithful(subject: Subject, called: Run) -> bool:
    """Whether forward itself still gives in this dtype what it gives in float64."""
    if all(called.args[i].dtype == torch.float64 for i in called.example.differentiable):
        return True
    try:
        exact = subject.run(called.example.double())
    except ForwardRefusedError:
        return True
    pairs = zip(called.outputs, exact.outputs, strict=False)
    alike = [(a, b) for a, b in pairs if can_differ(a) and a.shape == b.shape]
    return all(FAITHFUL.admits(have, want) for have, want in alike)


def _finite(grad: Tensor | None, flat: int) -> complex | float | None:
    if grad is None:
        return 0.0
    value = grad.detach().flatten()[flat]
    return value.item() if bool(torch.isfinite(value)) else None


def jumps(
    sides: Callable[[float], tuple[Estimate, Estimate]],
    curve: Callable[[float], float],
    truth: complex | float,
) -> bool:
    """Whether forward has no slope at an entry, with a jump there or a pole to both sides.

    Next to a guard against zero it is smooth in steps of the guard's size only, with that slope.
    """
    # Where the slope is beyond all others, the guard is as much smaller.
    for step in (*STEPS, 1e-13) if abs(truth) > STEEP else STEPS:
        left, right = sides(step)
        if left.is_known and right.is_known:
            slack = GUARDED * abs(truth)
            said = complex(truth).real
            if step == STEPS[0] or (left.agrees(said, slack) and right.agrees(said, slack)):
                return False
    near = [math.isfinite(curve(step)) for step in (1e-3, -1e-3)]
    return near[0] == near[1]


def _is_inside(subject: Subject, example: Example, cotangents: Cotangents) -> bool:
    """Whether forward is finite all around, in every input: at the edge of its domain anything may
    be not finite.
    """
    along = {
        i: normal(wide_of(example.args[i]), 41 + i)
        for i in example.needs
        if not example.args[i].is_complex()
    }
    curve = subject.reference.curve(example, cotangents, along)
    try:
        return all(math.isfinite(curve(step)) for step in (1e-3, -1e-3, 1e-6, -1e-6))
    except Exception:  # forward refuses what is next to the example
        return False


def lost_at_infinity(pulled: PulledValues) -> Iterator[Mismatch]:
    """Gradients of entries that are NaN or infinite, and that forward leaves out: they must be 0.

    That forward leaves them out is seen by its outputs, which are finite, and by PyTorch's own
    gradient, which is exactly 0 there.
    """
    subject, called = pulled.subject, pulled.called
    odd = {
        i: ~torch.isfinite(called.args[i].detach())
        for i, name in enumerate(called.names)
        if pulled.grads.get(name) is not None and not subject.target.intent.is_surrogate(name)
    }
    odd = {i: mask for i, mask in odd.items() if bool(mask.any())}
    if not odd:
        return
    usual = subject.reference.gradients(called.example, pulled.cotangents, tuple(odd)) or {}
    for i, mask in odd.items():
        want, have = usual.get(i), pulled.grads[called.names[i]]
        if want is None or have is None or have.shape != mask.shape or bool(want[mask].any()):
            continue
        apart = torch.where(mask, torch.nan_to_num(have.detach().double(), nan=math.inf), 0.0).abs()
        if bool(apart.any()):
            flat = int(apart.flatten().argmax())
            yield pulled.wrong_at(called.names[i], flat, 0.0, apart > 0, want)


# ---- ties ----


def beyond_ties(subject: Subject, example: Example) -> Iterator[Mismatch]:
    """Gradients whose sum is not the slope when the inputs move together, where that is smooth.

    PyTorch's own gradient of forward and differences must agree on that slope.
    """
    called = subject.run(example)
    cotangents = _uneven(called, subject.cotangents(called))
    pulled = PulledValues(subject, called, cotangents, called.pull(copies_of(cotangents)))
    places = [
        i
        for i, name in enumerate(called.names)
        if pulled.grads.get(name) is not None
        and not called.args[i].is_complex()
        and not subject.target.intent.is_surrogate(name)
    ]
    if not places:
        return
    together = _Together(pulled, places)
    for group in [places, *([i] for i in places)] if len(places) > 1 else [places]:
        found = together.wrong(group)
        if found is not None:
            yield found
            return


class _Together:
    """The slope of a function along all entries of some inputs, by backward and by forward."""

    def __init__(self, pulled: PulledValues, places: Sequence[int]) -> None:
        self._pulled, subject = pulled, pulled.subject
        self._example = pulled.called.example
        self._wide = tuple(None if c is None else wide_of(c) for c in pulled.cotangents)
        self._want = subject.reference.gradients(self._example, self._wide, tuple(places)) or {}
        # PyTorch differentiates an op by the very backward that is judged.
        args = self._example.fresh(needs=frozenset())
        self._is_own = bool(foreign_calls(subject.target.call, args))
        self._parts = subject.tangents(self._example)

    def wrong(self, group: Sequence[int]) -> Mismatch | None:
        """That the gradients of these inputs do not add up to the slope."""
        called, reference = self._pulled.called, self._pulled.subject.reference
        along = {i: torch.ones(called.args[i].shape, dtype=torch.float64) for i in group}
        if any(self._is_forbidden(i, step) for i, step in along.items()):
            return None
        grads = [self._pulled.grads[called.names[i]] for i in group]
        pulled = [wide_of(g) for g in grads if g is not None]
        have = math.fsum(float(g.sum()) for g in pulled)
        usual = [g for i in group if (g := self._want.get(i)) is not None]
        said = math.fsum(float(wide_of(g).sum()) for g in usual)
        size = math.fsum(float(g.abs().sum()) for g in pulled)
        slack = TIED * (size + abs(said)) + TIED_AT_ZERO
        if not abs(have - said) > slack and not self._is_own:
            return None
        slope = reference.slope(self._example, self._wide, along)
        said = slope.value if self._is_own else said
        estimates = slope, *reference.sides(self._example, self._wide, along)
        is_smooth = all(one.is_known and one.agrees(said, slack) for one in estimates)
        if not is_smooth or slope.agrees(have, slack):
            return None
        name, total = called.names[group[0]], sum(called.args[i].numel() for i in group)
        return Mismatch(name, group[0], None, said, have, total, total, torch.zeros(()), None)

    def _is_forbidden(self, position: int, step: Tensor) -> bool:
        """Whether inputs such as the example's take no such step."""
        part = self._parts.get(position)
        return part is not None and bool((part(step) - step).abs().max() > 0.5)


def _uneven(called: Run, cotangents: Cotangents) -> list[Tensor | None]:
    """Cotangents no few of which sum to zero."""
    found: list[Tensor | None] = []
    for number, cotangent in enumerate(cotangents):
        if cotangent is None:
            found.append(None)
            continue
        found.append(cotangent * uniform_like(cotangent.detach().abs(), 77 + number, 0.5, 1.5))
    return found
