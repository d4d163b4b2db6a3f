"""Gradients at unusual values: wrong, not finite where the truth is, or more than can be at a tie.

The judge accepts any slope between the two sides of a kink, entry by entry. At ties that is not
enough: where all tied entries move together the function is often smooth, and the gradients must
add up to its slope. And the judge says nothing where PyTorch's own gradient is not finite; here
differences are asked whether the function is smooth after all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from pullback.capture.seeds import normal, uniform_like
from pullback.check.subject.refusal import is_meant
from pullback.check.subject.subject import Subject
from pullback.check.subject.trials import TriedVariant, is_finite, trials
from pullback.check.watching.dispatch import foreign_calls
from pullback.judge.example import Example, can_differ, wide_of
from pullback.judge.mismatch import Mismatch, index_of
from pullback.judge.reference import STEP
from pullback.judge.run import (
    BackwardFailedError,
    ForwardRefusedError,
    Run,
    copies_of,
    describe,
)
from pullback.judge.slopes import Slopes
from pullback.judge.tolerances import (
    FAINT,
    FAITHFUL,
    GUARDED,
    SMOOTH,
    STEEP,
    TIED,
    TIED_AT_ZERO,
)

Cotangents = Sequence["Tensor | None"]
SINGULAR = "_LinAlgError"  # what PyTorch raises for a matrix without an inverse
STEPS = (STEP, 1e-7, 1e-10)  # of differences: as usual, and below the guards of divisions
LOOKS = 4  # so many entries that are not finite are looked at


def value_trials(
    subject: Subject,
    family: str,
    variants: Iterable[Example],
    *,
    ties: bool = False,
    values: bool = True,
    steep: float = STEEP,
    used: tuple[int, ...] | None = None,
) -> list[TriedVariant]:
    """The trials of one family of values, run now or remembered.

    Without `values`, only gradients that are not finite count: at the ends of a dtype rounding
    spoils what is finite. Nothing is said where the true gradient is beyond `steep`. With `used`,
    only these outputs have a cotangent.
    """

    def tried(example: Example) -> TriedVariant | None:
        return _trial(subject, example, ties, values, steep, used)

    return trials(subject, family, variants, tried)


def _trial(
    subject: Subject,
    example: Example,
    ties: bool,
    values: bool,
    steep: float,
    used: tuple[int, ...] | None,
) -> TriedVariant | None:
    try:
        called = subject.run(example)
    except ForwardRefusedError:
        return None
    if not called.live:
        return None
    cotangents = subject.cotangents(called)
    if used is not None:
        cotangents = tuple(c if k in used else None for k, c in enumerate(cotangents))
    try:
        # Also where forward is not finite: it must not end us.
        grads = called.pull(copies_of(cotangents))
    except BackwardFailedError as failure:
        is_singular = type(failure.error).__name__ == SINGULAR
        is_served = not (is_singular or is_meant(failure.error)) and is_finite(called)
        is_served = is_served and _is_served(subject, example, cotangents)
        raised = describe(failure.error) if is_served else None
        return TriedVariant(example, failure=raised, used=used) if raised else None
    if not is_finite(called):
        return None
    judged = subject.mismatches(called, cotangents, grads, at_once=True) if values else []
    judged = [m for m in judged if abs(m.expected) <= steep * max(_largest(cotangents), 1.0)]
    found = {m.name: m for m in judged if not _is_faint(m, cotangents)}
    for more in not_finite(subject, called, cotangents, grads, steep, beside=values):
        found.setdefault(more.name, more)
    if not ties and not found:
        found = {m.name: m for m in lost_at_infinity(subject, called, cotangents, grads)}
    if ties and not found:
        found = {m.name: m for m in beyond_ties(subject, example)}
    return TriedVariant(example, tuple(found.values()), used=used)


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


def not_finite(
    subject: Subject,
    called: Run,
    cotangents: Cotangents,
    grads: dict[str, Tensor | None],
    steep: float = STEEP,
    *,
    beside: bool = True,
) -> Iterator[Mismatch]:
    """Gradients that are NaN or infinite where forward's own are finite, or forward is smooth.

    Without `beside`, only where forward's own are finite: at the ends of a dtype that is all one
    can ask.
    """
    positions = {name: i for i, name in enumerate(called.names) if name in grads}
    intent = subject.target.intent
    has_numbers = all(bool(torch.isfinite(x.detach()).all()) for x in called.leaves.values())
    spoiled = {
        name: grad
        for name, grad in grads.items()
        if grad is not None
        and not bool(torch.isfinite(grad.detach()).all())
        and (has_numbers or not intent.is_surrogate(name))
    }
    if not spoiled or not _is_faithful(subject, called):
        return
    wide = tuple(None if c is None else wide_of(c) for c in cotangents)
    exact = called.example.double()
    most = steep * _largest(wide)
    places = tuple(positions[name] for name in spoiled)
    want = subject.reference.gradients(exact, wide, places) or {}
    eager = subject.reference.gradients(called.example, cotangents, places) or {}
    for name, grad in spoiled.items():
        position = positions[name]
        for flat in (~torch.isfinite(grad.detach())).flatten().nonzero()[:LOOKS, 0].tolist():
            truth = _finite(want.get(position), flat)
            if truth is None or _finite(eager.get(position), flat) is None:
                x = exact.args[position]
                is_tiny = not x.is_complex() and float(x.flatten()[flat].abs()) < 1
                is_known = truth is not None and is_tiny  # huge ones are not asked beyond autograd
                if not (beside or is_known) or not _is_inside(subject, exact, wide):
                    break
                truth = None
                if not exact.args[position].is_complex():
                    slopes = Slopes(subject.reference, exact, wide, position)
                    truth = slopes.entry(flat, certain=SMOOTH)
            elif _jumps(subject, exact, wide, position, flat, truth):
                truth = None
            limit = torch.finfo(grad.dtype).max / 16
            # An overflow beside a pole is no defect; a quotient of zeros is one, which PyTorch's
            # own gradient has not.
            got = grad.detach().flatten()[flat]
            is_quotient = bool(got.isnan()) and _finite(eager.get(position), flat) is not None
            is_quotient = is_quotient and not bool(called.args[position].detach().flatten()[flat])
            if truth is None or abs(truth) > (limit if is_quotient else min(most, limit)):
                continue
            wrong = int((~torch.isfinite(grad.detach())).sum())
            yield Mismatch(
                name,
                position,
                index_of(flat, grad.shape),
                truth,
                got.item(),
                wrong,
                grad.numel(),
                grad,
                grad,
            )
            break


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


def _jumps(
    subject: Subject,
    example: Example,
    cotangents: Cotangents,
    position: int,
    flat: int,
    truth: complex | float,
) -> bool:
    """Whether forward has no slope at an entry, with a jump there or a pole to both sides.

    Next to a guard against zero it is smooth in steps of the guard's size only, with that slope.
    """
    unit = torch.zeros(example.args[position].shape, dtype=wide_of(example.args[position]).dtype)
    unit.view(-1)[flat] = 1
    # Where the slope is beyond all others, the guard is as much smaller.
    for step in (*STEPS, 1e-13) if abs(truth) > STEEP else STEPS:
        left, right = subject.reference.sides(example, cotangents, {position: unit}, step)
        if left.is_known and right.is_known:
            slack = GUARDED * abs(truth)
            said = complex(truth).real
            if step == STEPS[0] or (left.agrees(said, slack) and right.agrees(said, slack)):
                return False
    curve = subject.reference.curve(example, cotangents, {position: unit})
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


def lost_at_infinity(
    subject: Subject, called: Run, cotangents: Cotangents, grads: dict[str, Tensor | None]
) -> Iterator[Mismatch]:
    """Gradients of entries that are NaN or infinite, and that forward leaves out: they must be 0.

    That forward leaves them out is seen by its outputs, which are finite, and by PyTorch's own
    gradient, which is exactly 0 there.
    """
    odd = {
        i: ~torch.isfinite(called.args[i].detach())
        for i, name in enumerate(called.names)
        if grads.get(name) is not None and not subject.target.intent.is_surrogate(name)
    }
    odd = {i: mask for i, mask in odd.items() if bool(mask.any())}
    if not odd:
        return
    usual = subject.reference.gradients(called.example, cotangents, tuple(odd)) or {}
    for i, mask in odd.items():
        want, have = usual.get(i), grads[called.names[i]]
        if (
            want is None
            or have is None
            or have.shape != mask.shape
            or bool((want[mask] != 0).any())
        ):
            continue
        apart = torch.where(mask, torch.nan_to_num(have.detach().double(), nan=math.inf), 0.0).abs()
        if bool((apart > 0).any()):
            flat = int(apart.flatten().argmax())
            got = have.detach().flatten()[flat].item()
            index = index_of(flat, have.shape)
            wrong, name = int((apart > 0).sum()), called.names[i]
            yield Mismatch(name, i, index, 0.0, got, wrong, have.numel(), want, have)


# ---- ties ----


def beyond_ties(subject: Subject, example: Example) -> Iterator[Mismatch]:
    """Gradients whose sum is not the slope when the inputs move together, where that is smooth.

    PyTorch's own gradient of forward and differences must agree on that slope.
    """
    called = subject.run(example)
    cotangents = _uneven(called, subject.cotangents(called))
    grads = called.pull(copies_of(cotangents))
    positions = {
        i: name
        for i, name in enumerate(called.names)
        if grads.get(name) is not None
        and not called.args[i].is_complex()
        and not subject.target.intent.is_surrogate(name)
    }
    if not positions:
        return
    pulled = {i: grad for i, name in positions.items() if (grad := grads[name]) is not None}
    wide = tuple(None if c is None else wide_of(c) for c in cotangents)
    want = subject.reference.gradients(example, wide, tuple(positions)) or {}
    # PyTorch differentiates an op by the very backward that is judged.
    is_own = bool(foreign_calls(subject.target.call, example.fresh(needs=frozenset())))
    parts = subject.tangents(example)
    groups = [[i] for i in positions] if len(positions) == 1 else [list(positions)]
    groups += [[i] for i in positions] if len(positions) > 1 else []
    for group in groups:
        along = {i: torch.ones(called.args[i].shape, dtype=torch.float64) for i in group}
        if any(bool((parts[i](a) - a).abs().max() > 0.5) for i, a in along.items() if i in parts):
            continue  # a step that inputs such as the example's do not take
        have = math.fsum(float(wide_of(pulled[i]).sum()) for i in group)
        said = math.fsum(float(wide_of(g).sum()) for i in group if (g := want.get(i)) is not None)
        size = math.fsum(float(wide_of(pulled[i]).abs().sum()) for i in group)
        slack = TIED * (size + abs(said)) + TIED_AT_ZERO
        if not abs(have - said) > slack and not is_own:
            continue
        slope = subject.reference.slope(example, wide, along)
        said = slope.value if is_own else said
        left, right = subject.reference.sides(example, wide, along)
        if not (slope.is_known and left.is_known and right.is_known):
            continue
        if not (slope.agrees(said, slack) and left.agrees(said, slack)):
            continue
        if not right.agrees(said, slack) or slope.agrees(have, slack):
            continue
        name = positions[group[0]]
        total = sum(called.args[i].numel() for i in group)
        yield Mismatch(name, group[0], None, said, have, total, total, torch.zeros(()), None)
        return


def _uneven(called: Run, cotangents: Cotangents) -> list[Tensor | None]:
    """Cotangents no few of which sum to zero."""
    found: list[Tensor | None] = []
    for number, cotangent in enumerate(cotangents):
        if cotangent is None:
            found.append(None)
            continue
        found.append(cotangent * uniform_like(cotangent.detach().abs(), 77 + number, 0.5, 1.5))
    return found
