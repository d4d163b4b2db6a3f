"""Whether what is wrong at another shape, or at ties, is a matter of values alone.

A variant with more elements also holds larger ones, and a tie is a value too: a wrong piece beyond
a threshold shows at both. So a shape is only blamed where the example's own values, tiled or cut to
it, are wrong as well, or the new values are right in the old shape; and ties only where values
apart from one another are right. What is set aside here is for the rules on values to tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from pullback.capture.indices import is_index
from pullback.check.inputs.arguments import indices_of, masks_of
from pullback.check.subject.subject import Subject
from pullback.check.subject.trials import TriedVariant, trial_of, trials
from pullback.judge.example import Example, can_differ, tensors_in, wide_of
from pullback.judge.mismatch import Mismatch, flat_of
from pullback.judge.run import ForwardRefusedError
from pullback.judge.tolerances import STABLE

ASIDE = "set aside"
NOTHING = 1e-13  # of an input in double precision, which a sound function does not amplify much
COLUMNS = 4  # entries of a dimension, each of which forward may call by its number
FAINT, ROUNDINGS = 1e-30, 64  # by how much zeros move, and others, so that no guard notices
JUMP = 1e-2  # of an output and one more
SPREAD = 3e-3  # how far apart tied values are moved

Retry = Callable[[Subject, TriedVariant, Mismatch], "TriedVariant | None"]


def by_shape(subject: Subject, found: Iterable[TriedVariant]) -> Iterator[TriedVariant]:
    """The trials, without what is wrong for the values in the example's own shapes too."""
    served = _served(subject, found)
    return by_masks(subject, by_indices(subject, _without(subject, served, _of_values)))


def _served(subject: Subject, found: Iterable[TriedVariant]) -> Iterator[TriedVariant]:
    """The trials, without sizes of which forward reads no more than it does of the example's.

    Where the last dimension is a real and an imaginary part, a third entry is a mistake. Nor does
    forward serve a size at which it gives noise, such as a matrix that has no inverse there.
    """
    for trial in found:
        kept = [m for m in trial.mismatches if not _has_unread(subject.small, m)]
        if kept and not _is_stable(subject, trial.example):
            kept = []
        yield replace(trial, mismatches=tuple(kept))


def _is_stable(subject: Subject, example: Example) -> bool:
    """Whether forward gives nearly the same where all inputs move by next to nothing."""
    moved = example
    for i in example.differentiable:
        value = example.args[i]
        if wide_of(value).dtype == value.dtype:
            moved = moved.put(i, value * (1 + NOTHING), example.label)
    try:
        pairs = zip(subject.run(example).outputs, subject.run(moved).outputs, strict=True)
    except ForwardRefusedError:
        return True
    return all(STABLE.admits(b, a) for a, b in pairs if can_differ(a))


def _has_unread(start: Example, mismatch: Mismatch) -> bool:
    """Whether a dimension of a few entries is longer here, and PyTorch gives 0 for the rest."""
    old, want = start.args[mismatch.position].shape, mismatch.want
    if want.dim() != len(old):
        return False
    for dim, size in enumerate(old):
        if size <= COLUMNS and want.shape[dim] > size:
            rows = want.movedim(dim, 0).reshape(want.shape[dim], -1)
            if not bool(rows[size:].any()) and bool((rows[:size] != 0).any(1).all()):
                return True
    return False


def by_ties(subject: Subject, found: Iterable[TriedVariant]) -> Iterator[TriedVariant]:
    """The trials, without what is wrong for values close by that are not tied too.

    Where forward jumps at a tie there is no slope to add up to: a matrix of equal rows has lost the
    direction that forward returns.
    """
    kept = (replace(t, mismatches=_unless_jumping(subject, t)) for t in found)
    return _without(subject, kept, _untied)


def _unless_jumping(subject: Subject, trial: TriedVariant) -> tuple[Mismatch, ...]:
    is_lost = bool(trial.mismatches) and _jumps(subject, trial.example, trial.used)
    return () if is_lost else trial.mismatches


def by_zero(subject: Subject, found: Iterable[TriedVariant]) -> Iterator[TriedVariant]:
    """The trials, without what is wrong where the zeros are all another number: those are ties.

    Nor is there a gradient to give where forward jumps and PyTorch's own is not finite either: the
    null space of a matrix of zeros is any space.
    """
    return _without(subject, (_without_jumps(subject, trial) for trial in found), _raised)


def _without_jumps(subject: Subject, trial: TriedVariant) -> TriedVariant:
    kept = tuple(m for m in trial.mismatches if not _is_lost_by_all(m))
    is_whole = len(kept) == len(trial.mismatches) or not _jumps(subject, trial.example)
    return trial if is_whole else replace(trial, mismatches=kept)


def _is_lost_by_all(mismatch: Mismatch) -> bool:
    """Whether neither this gradient nor PyTorch's own is finite."""
    if mismatch.index is None or is_finite_number(mismatch.got):
        return False
    return not bool(torch.isfinite(mismatch.want[mismatch.index]).all())


def _jumps(subject: Subject, example: Example, used: tuple[int, ...] | None = None) -> bool:
    """Whether forward gives other numbers where all inputs move by next to nothing.

    `used` are the outputs that are looked at, None for all.
    """
    moved = example
    for i in example.differentiable:
        value = example.args[i]
        steps = torch.arange(value.numel(), dtype=torch.float64, device=value.device)
        apart = (((steps + i / 7) * 0.618034) % 1 - 0.5).to(value.dtype).reshape(value.shape)
        far = torch.where(value == 0, FAINT, ROUNDINGS * torch.finfo(value.dtype).eps * value)
        moved = moved.put(i, value + far * apart, example.label)
    try:
        pairs = zip(subject.run(example).outputs, subject.run(moved).outputs, strict=True)
    except ForwardRefusedError:
        return False
    looked = [(a, b) for k, (a, b) in enumerate(pairs) if used is None or k in used]
    return any(_is_apart(a.detach(), b.detach()) for a, b in looked if a.requires_grad)


def _is_apart(a: Tensor, b: Tensor) -> bool:
    return a.shape != b.shape or bool(((a - b).abs() > JUMP * (1 + a.abs())).any())


def by_indices(subject: Subject, found: Iterable[TriedVariant]) -> Iterator[TriedVariant]:
    """The trials, without inputs that are wrong for other indices in the example's own shapes."""

    def others() -> list[TriedVariant]:
        variants = indices_of(subject.small, subject.names, subject.target.name)
        return trials(subject, "indices", variants)

    return _unlike(found, is_index, others)


def by_masks(subject: Subject, found: Iterable[TriedVariant]) -> Iterator[TriedVariant]:
    """The trials, without inputs that are wrong for other masks in the example's own shapes."""

    def others() -> list[TriedVariant]:
        return trials(subject, "masks", masks_of(subject.small, subject.names))

    return _unlike(found, lambda tensor: tensor.dtype == torch.bool, others)


def _unlike(
    found: Iterable[TriedVariant],
    is_meant: Callable[[Tensor], bool],
    others: Callable[[], list[TriedVariant]],
) -> Iterator[TriedVariant]:
    """The trials, without inputs that are wrong in the others too, if they have such a tensor."""
    for trial in found:
        if not trial.mismatches or not any(map(is_meant, tensors_in(trial.example.args))):
            yield trial
            continue
        known = {mismatch.name for other in others() for mismatch in other.mismatches}
        yield replace(trial, mismatches=tuple(m for m in trial.mismatches if m.name not in known))


def set_aside(subject: Subject) -> list[TriedVariant]:
    """The trials that show a fault of values, found on the way."""
    return list(subject.trials.get(ASIDE, ()))


def _without(
    subject: Subject, found: Iterable[TriedVariant], retry: Retry
) -> Iterator[TriedVariant]:
    for trial in found:
        kept: list[Mismatch] = []
        for mismatch in trial.mismatches:
            other = (
                None if mismatch.name in subject.wrong_names else retry(subject, trial, mismatch)
            )
            if other is None:
                kept.append(mismatch)
            else:
                subject.trials.setdefault(ASIDE, []).append(other)
        yield replace(trial, mismatches=tuple(kept))


# ---- shapes ----


def _of_values(subject: Subject, trial: TriedVariant, mismatch: Mismatch) -> TriedVariant | None:
    """The trial in the example's own shapes that is wrong as well; None where none is."""
    old, new = subject.small, trial.example
    if len(old.args) != len(new.args) or mismatch.index is None:
        return None
    place = mismatch.position
    first = flat_of(mismatch.index, new.args[place].shape)
    tiled = _refilled(new, old, place, 0)
    same = _tried(subject, tiled, mismatch.name)
    if same is None or same.mismatches:
        return _constant(subject, old, new, mismatch)  # it refuses them, or they are wrong here
    other = _tried(subject, _refilled(old, new, place, first), mismatch.name)
    return other if other is not None and other.mismatches else None


def _constant(
    subject: Subject, old: Example, new: Example, mismatch: Mismatch
) -> TriedVariant | None:
    """The trial in the old shapes with equal entries where the new one has a single one."""
    made = replace(old, label="other values")
    for i in old.differentiable:
        value, other = old.args[i], new.args[i].shape
        for dim, size in enumerate(value.shape if len(other) == value.dim() else ()):
            if other[dim] == 1 < size:
                same = made.args[i].narrow(dim, 0, 1).expand(value.shape).clone()
                made = made.put(i, same, made.label)
    if all(made.args[i] is old.args[i] for i in old.differentiable):
        return None
    found = _tried(subject, made, mismatch.name)
    return found if found is not None and found.mismatches else None


def _refilled(shapes: Example, values: Example, place: int, first: int) -> Example:
    """An example in the shapes of one, with the values of another, from entry `first` on."""
    made = replace(shapes, label="other values")
    whole = values.args[place].shape
    for i in shapes.differentiable:
        source = values.args[i]
        if isinstance(source, Tensor) and can_differ(source) and source.numel():
            start = first if source.shape == whole else 0
            made = made.put(i, _window(source, shapes.args[i], start), made.label)
    return made


def _window(source: Tensor, like: Tensor, first: int) -> Tensor:
    """Values of `source` in the shape of `like`: a window that holds entry `first`, or tiled."""
    flat, count = source.detach().flatten(), like.numel()
    whole = first // max(count, 1) * count  # rows begin where they did
    start = max(min(whole, flat.numel() - count), 0)
    index = (torch.arange(count, device=flat.device) + start) % flat.numel()
    return flat[index].reshape(like.shape).to(like.dtype)


# ---- ties ----


def _untied(subject: Subject, trial: TriedVariant, mismatch: Mismatch) -> TriedVariant | None:
    """The trial at values close by, no two of them equal, that is wrong as well."""
    made = replace(trial.example, label="other values")
    for i in sorted(trial.example.needs):
        value = made.args[i]
        if value.numel() and not value.is_complex():
            steps = torch.arange(value.numel(), dtype=value.dtype, device=value.device)
            apart = ((steps + i / 7) * 0.618034) % 1 + 0.05
            made = made.put(i, value + SPREAD * apart.reshape(value.shape), made.label)
    other = _tried(subject, made, mismatch.name)
    if other is None or not other.mismatches:
        return None
    is_lost = not is_finite_number(mismatch.got)  # a quotient of zeros, which only ties make
    return None if is_lost and is_finite_number(other.mismatches[0].got) else other


def _raised(subject: Subject, trial: TriedVariant, mismatch: Mismatch) -> TriedVariant | None:
    """The trial with another number in the place of all zeros that is wrong as well."""
    made = replace(trial.example, label="other values")
    for i in sorted(trial.example.needs):
        value = made.args[i]
        if int((value == 0).sum()) > 1:
            made = made.put(i, torch.where(value == 0, 0.625, value), made.label)
    other = _tried(subject, made, mismatch.name)
    return other if other is not None and other.mismatches else None


def _tried(subject: Subject, example: Example, name: str) -> TriedVariant | None:
    """The trial of an example, with what is wrong for input `name` alone."""
    trial = trial_of(subject, example)
    if trial is None or trial.failure:
        return None
    return replace(trial, mismatches=tuple(m for m in trial.mismatches if m.name == name))


def is_finite_number(number: complex | float | None) -> bool:
    """Whether a gradient's entry is there, and neither infinite nor NaN."""
    return number is not None and math.isfinite(abs(number))
