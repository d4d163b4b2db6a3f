"""How a wrong gradient differs from the right one, by its numbers alone.

Each pattern is a function of a wrong gradient that returns one sentence, or an empty text. The
sentence holds in every trial in which the gradient is wrong. `PATTERNS` is in order of priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations
from typing import Any

import torch
from torch import Tensor

from pullback.capture.seeds import normal
from pullback.diagnose.gradient_trial import GradientTrial
from pullback.diagnose.numerals import simplest
from pullback.diagnose.trials import Trials
from pullback.function.gradients import sums_down_to
from pullback.judge.patterns import ratio_of
from pullback.judge.tolerances import PATTERN


@dataclass(frozen=True, slots=True, eq=False)
class WrongGradient:
    """One wrong gradient: the trials in which it is wrong, and the user's names."""

    trials: Trials
    place: int
    cotangent_names: tuple[str, ...]

    @property
    def first(self) -> GradientTrial | None:
        """The first trial in which the gradient is wrong; None if it is right in all."""
        return next((trial for trial in self.trials.all if trial.is_wrong(self.place)), None)

    @property
    def shown(self) -> list[GradientTrial]:
        """The trials in which the gradient is wrong; only the small ones, if it is in one."""
        shown = [trial for trial in self.trials.all if trial.is_wrong(self.place)]
        return [trial for trial in shown if not trial.is_large] or shown

    @property
    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """The expected and the got gradient in each of these."""
        return [trial.pair(self.place) for trial in self.shown]

    def is_right_after(self, change: Callable[[Tensor], Tensor]) -> bool:
        """Whether a change of the gradient that was got makes it right in each of these."""
        rows = ((trial, *trial.pair(self.place)) for trial in self.shown)
        return all(trial.agrees(expected, change(got)) for trial, expected, got in rows)

    def has_shape(self) -> bool:
        """Whether what was returned has the shape of the input."""
        return all(expected.shape == got.shape for expected, got in self.pairs)


ErrorPattern = Callable[[WrongGradient], str]


# ---- the whole gradient ----


def missing_gradient(evidence: WrongGradient) -> str:
    """None, though the output depends on the input."""
    trial = evidence.shown[0]
    is_none = trial.got[evidence.place] is None
    return "`None` is returned where a gradient flows" if is_none else ""


def unexpected_gradient(evidence: WrongGradient) -> str:
    """A gradient, though the derivative is zero."""
    is_zero = not any(bool(expected.any()) for expected, _ in evidence.pairs)
    return "a gradient is returned where none flows" if is_zero else ""


def swapped_gradient(evidence: WrongGradient) -> str:
    """Two gradients, each in the place of the other."""
    other = swapped_with(evidence)
    return "" if other is None else f"swapped with the gradient of `{evidence.trials.names[other]}`"


def copied_gradient(evidence: WrongGradient) -> str:
    """The gradient of another input."""
    for other, name in enumerate(evidence.trials.names):
        if other != evidence.place and _is_gradient_of(evidence, evidence.place, other):
            return f"the gradient of `{name}` is returned for it"
    return ""


def swapped_with(evidence: WrongGradient) -> int | None:
    """The place of the gradient that this one is swapped with."""
    for other in range(len(evidence.trials.names)):
        both = ((evidence.place, other), (other, evidence.place))
        if other != evidence.place and all(_is_gradient_of(evidence, a, b) for a, b in both):
            return other
    return None


def _is_gradient_of(evidence: WrongGradient, place: int, other: int) -> bool:
    """Whether what was got at `place` is what was expected at `other`."""
    for trial in evidence.shown:
        got, expected = trial.got[place], trial.expected[other]
        if got is None or expected is None or not bool(expected.any()):
            return False
        if got.shape != expected.shape and sums_down_to(got.shape, expected.shape):
            got = got.sum_to_size(expected.shape)
        if not trial.agrees(expected, got):
            return False
    return True


def misshapen_gradient(evidence: WrongGradient) -> str:
    """A shape that the engine refuses."""
    expected, got = evidence.pairs[0]
    if evidence.has_shape():
        return ""
    reason = next((words for words, _ in shape_repairs(evidence)), "")
    shapes = f"the shape is {list(got.shape)} instead of {list(expected.shape)}"
    return f"{reason}: {shapes}" if reason else shapes


def unused_cotangent(evidence: WrongGradient) -> str:
    """The same whatever the cotangent is."""
    trials, trial = evidence.trials, evidence.shown[0]
    for place, name in enumerate(evidence.cotangent_names):
        cotangents = list(trial.cotangents)
        cotangents[place] = normal(cotangents[place], 977)
        got = trials.written(trial.tensors, cotangents, trial.number)[evidence.place]
        expected = trials.derived(trial.tensors, cotangents, trial.number)[evidence.place]
        changes = not trial.agrees(trial.expected[evidence.place], expected)
        if changes and trial.agrees(trial.got[evidence.place], got):
            return f"the cotangent `{name}` is not used"
    return ""


def constant_multiple(evidence: WrongGradient) -> str:
    """A constant times the right one."""
    ratios = _ratios(evidence)
    if not ratios:
        return ""
    if all(abs(ratio) < PATTERN for ratio in ratios):
        return "zero where a gradient flows"
    if all(abs(ratio + 1) < PATTERN for ratio in ratios):
        return "the sign is wrong"
    words = _constant_words(ratios, evidence)
    return f"{words} times what it should be" if words else ""


def _ratios(evidence: WrongGradient) -> list[float]:
    """The ratio of got and expected in each trial; nothing if it is not one number in one."""
    if not evidence.has_shape():
        return []
    found, count = [], 0
    for trial in evidence.shown:
        expected, got = trial.pair(evidence.place)
        wrong = trial.wrong(evidence.place)
        ratio = ratio_of(got[wrong], expected[wrong])
        if ratio is None:
            return []
        found.append(ratio)
        count += int(wrong.sum())
    return found if count > 1 else []


def constant_factor(evidence: WrongGradient) -> float | None:
    """The number that the gradient is too large by, if it is one in every trial."""
    ratios = _ratios(evidence)
    return ratios[0] if ratios and _is_one(ratios) else None


def _is_one(numbers: Sequence[float]) -> bool:
    """Whether numbers are all the same."""
    return all(abs(number - numbers[0]) <= PATTERN * abs(numbers[0]) for number in numbers)


def _constant_words(ratios: Sequence[float], evidence: WrongGradient) -> str:
    if _is_one(ratios):
        return simplest(ratios[0])
    for name, place, dim in _dimensions(evidence.trials):
        sizes = [trial.tensors[place].shape[dim] for trial in evidence.shown]
        pairs = list(zip(ratios, sizes, strict=True))
        if all(abs(ratio * size - 1) <= PATTERN for ratio, size in pairs):
            return f"`1 / {name}`"
        if all(abs(ratio / size - 1) <= PATTERN for ratio, size in pairs if size):
            return f"`{name}`"
    return ""


def _dimensions(trials: Trials) -> Iterator[tuple[str, int, int]]:
    """Each dimension of each input: how it is written, and which it is."""
    pairs = zip(trials.input_names, trials.all[0].tensors, strict=True)
    for place, (name, tensor) in enumerate(pairs):
        for dim in range(tensor.dim()):
            yield f"{name}.shape[{dim}]", place, dim


# ---- the elements in another order ----


def conjugated_gradient(evidence: WrongGradient) -> str:
    """The complex conjugate."""
    is_complex = evidence.pairs[0][0].is_complex()
    is_conjugate = is_complex and evidence.is_right_after(Tensor.conj)
    return "the conjugate of what it should be" if is_conjugate else ""


def permuted_gradient(evidence: WrongGradient) -> str:
    """Two dimensions of equal size exchanged, or one reversed."""
    dims = range(evidence.pairs[0][0].dim())
    if not evidence.has_shape() or len(dims) > 4:
        return ""
    for order in permutations(dims):
        if list(order) != list(dims) and evidence.is_right_after(
            partial(torch.permute, dims=order)
        ):
            return "transposed"
    for dim in dims:
        if evidence.is_right_after(partial(torch.flip, dims=[dim])):
            return f"reversed along dimension {dim}"
        for shift in (1, -1):
            if evidence.is_right_after(partial(torch.roll, shifts=-shift, dims=dim)):
                return f"shifted by {shift} along dimension {dim}"
    return ""


def unreduced_gradient(evidence: WrongGradient) -> str:
    """The sum or mean along a dimension would be right."""
    sizes = [got.shape for _, got in evidence.pairs]
    for dim in range(len(sizes[0])) if evidence.has_shape() else ():
        for name in ("sum", "mean"):
            reduced = partial(_reduced_along, name, dim)
            if all(size[dim] > 1 for size in sizes) and evidence.is_right_after(reduced):
                return f"the {name} over dimension {dim} is missing"
    return ""


def _reduced_along(name: str, dim: int, gradient: Tensor) -> Tensor:
    reduced: Tensor = getattr(gradient, name)(dim, keepdim=True)
    return reduced.expand_as(gradient)


def nonlinear_gradient(evidence: WrongGradient) -> str:
    """Not linear in the cotangent, which every derivative is."""
    trials, trial = evidence.trials, evidence.shown[0]
    twice = [2 * cotangent for cotangent in trial.cotangents]
    got = trials.written(trial.tensors, twice, trial.number)[evidence.place]
    once = trial.got[evidence.place]
    if once is None or got is None or trial.agrees(2 * once, got):
        return ""
    return "not linear in the cotangent"


PATTERNS: tuple[ErrorPattern, ...] = (
    missing_gradient,
    unexpected_gradient,
    swapped_gradient,
    misshapen_gradient,
    unused_cotangent,
    constant_multiple,
    copied_gradient,
    conjugated_gradient,
    permuted_gradient,
)
"""Patterns that are certain to be the error, if they hold."""

LAST: tuple[ErrorPattern, ...] = (nonlinear_gradient, unreduced_gradient)
"""Patterns that are reported if no edit explains more."""


# ---- shapes ----

ShapeRepair = Callable[[Tensor, Sequence[Any]], Tensor]
"""Corrects a gradient of the wrong shape: of the gradient and the shape of the input."""


def shape_repairs(evidence: WrongGradient) -> Iterator[tuple[str, ShapeRepair]]:
    """Each correction of a gradient of the wrong shape, with the name of the error."""
    for words, repair in _shape_repairs(evidence.pairs[0][1], evidence.pairs[0][0].shape):
        rows = ((trial, *trial.pair(evidence.place)) for trial in evidence.shown)
        if all(t.agrees(e, _tried(repair, got, e.shape)) for t, e, got in rows):
            yield words, repair


def _tried(repair: ShapeRepair, got: Tensor, shape: Sequence[Any]) -> Tensor | None:
    try:
        return repair(got, shape)
    except RuntimeError:
        return None


def _shape_repairs(got: Tensor, shape: Sequence[int]) -> Iterator[tuple[str, ShapeRepair]]:
    dims = range(got.dim())
    for order in permutations(dims) if got.dim() <= 5 else ():
        if [got.shape[d] for d in order] == list(shape):
            is_matrix = got.dim() == 2  # `t()` is how people write it
            yield "transposed", (lambda g, s: g.t()) if is_matrix else partial(_permute, order)
    for count in dims:
        for chosen in combinations(dims, count + 1):
            for name in ("sum", "mean"):
                yield "a reduction is missing", partial(_reduce, name, chosen)
    yield "not expanded", lambda g, s: g.expand(tuple(s))
    yield "not reshaped", lambda g, s: g.reshape(tuple(s))


def _permute(order: Sequence[int], gradient: Tensor, shape: Sequence[Any]) -> Tensor:
    return gradient.permute(tuple(order))


def _reduce(name: str, dims: Sequence[int], gradient: Tensor, shape: Sequence[Any]) -> Tensor:
    reduced: Tensor = getattr(gradient, name)(tuple(dims))
    return reduced if reduced.dim() == len(shape) else reduced.reshape(tuple(shape))


# ---- where ----


def wrong_elements(
    evidence: WrongGradient, masks: Sequence[tuple[str, Mapping[int, Tensor]]]
) -> str:
    """Which elements are wrong, if not all that could be: `, only where ...`.

    `masks` are the user's own conditions, each with its value by the number of the trial.
    """
    if not evidence.has_shape():
        return ""
    rows = [(trial, *_wrong_and_not(trial, evidence.place)) for trial in evidence.shown]
    if all(bool((wrong == care).all()) for _, wrong, care in rows):
        return ""
    for text, values in (*masks, *_sign_masks(evidence)):
        seen = [(values.get(trial.number), wrong, care) for trial, wrong, care in rows]
        known = [(mask, wrong, care) for mask, wrong, care in seen if mask is not None]
        if known and all(_is_mask(mask, wrong, care) for mask, wrong, care in known):
            return f", only where `{text}`"
    return _slice_words([wrong for _, wrong, _ in rows])


def _wrong_and_not(trial: GradientTrial, place: int) -> tuple[Tensor, Tensor]:
    """Where the gradient is wrong, and where it could be: not where zero is right."""
    expected, got = trial.pair(place)
    wrong = trial.wrong(place)
    return wrong, wrong | (torch.isfinite(expected) & ((expected != 0) | (got != 0)))


def _is_mask(mask: Tensor, wrong: Tensor, care: Tensor) -> bool:
    try:
        mask = mask.expand(wrong.shape)
    except RuntimeError:
        return False
    return bool(((mask & care) == wrong).all())


def _sign_masks(evidence: WrongGradient) -> Iterator[tuple[str, dict[int, Tensor]]]:
    """Where an input of the same shape is positive, negative or zero."""
    trials = evidence.trials
    for place, name in enumerate(trials.input_names):
        rows = {trial.number: trial.tensors[place] for trial in trials.all}
        if rows[0].is_floating_point():
            yield f"{name} > 0", {number: row > 0 for number, row in rows.items()}
            yield f"{name} < 0", {number: row < 0 for number, row in rows.items()}
            yield f"{name} == 0", {number: row == 0 for number, row in rows.items()}


def _slice_words(wrong: Sequence[Tensor]) -> str:
    """`, only at index 3 of dimension 0`, if the wrong elements are all there in every trial."""
    for dim in range(wrong[0].dim()):
        found = [torch.unique(mask.nonzero()[:, dim]).tolist() for mask in wrong]
        ends = [[i - mask.shape[dim] for i in row] for row, mask in zip(found, wrong, strict=True)]
        for indices in (found, ends):
            if len(indices[0]) == 1 and all(row == indices[0] for row in indices):
                return f", only at index {indices[0][0]} of dimension {dim}"
    return ""
