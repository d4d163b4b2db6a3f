"""Relations that the arguments of an example show, and that other arguments keep.

One-hot targets, a symmetric matrix, a permutation and its inverse, a kernel and its flip: what a
function is always called with is part of what it was promised, and what it does with other
arguments is no defect. So arguments that break a relation of the examples are not tried. Only
relations count that random numbers do not show by chance, and that more than one number shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from pullback.capture.indices import is_index
from pullback.judge.example import Example, can_differ

FEW = 5  # numbers that may be in order by chance
NEAR = {2: 1e-2, 4: 1e-4, 8: 1e-4}  # by the bytes of a number: sums of what was rounded


@dataclass(frozen=True, slots=True)
class Relation:
    """What holds of the arguments at these positions, in words and as a test.

    `is_declared` says that the author said so, of numbers that are no tensors as well.
    """

    words: str
    positions: tuple[int, ...]
    holds: Callable[..., bool]
    is_declared: bool = False

    def is_kept(self, example: Example) -> bool:
        """Whether it holds in another example; of nothing, everything does."""
        if max(self.positions) >= len(example.args):
            return True
        values = [example.args[i] for i in self.positions]
        if self.is_declared:
            values = [torch.tensor(v) if type(v) in (int, float) else v for v in values]
        if not all(isinstance(value, Tensor) and value.numel() for value in values):
            return True
        return self.holds(*(value.detach() for value in values))


def relations_of(examples: Sequence[Example]) -> tuple[Relation, ...]:
    """What holds in all of the examples."""
    first, *others = examples
    return tuple(r for r in _shown(first) if all(r.is_kept(other) for other in others))


def _shown(example: Example) -> Iterator[Relation]:
    tensors = {i: example.args[i].detach() for i in example.tensors}
    told = {i: t for i, t in tensors.items() if _tells(t)}
    for i, tensor in told.items():
        for words, holds in ALONE.items():
            if holds(tensor):
                yield Relation(words, (i,), holds)
                break  # the narrowest
    for i, j in permutations(told, 2):
        for words, test in TOGETHER.items():
            if test(told[i], told[j]):
                yield Relation(words, (i, j), test)
                break


def _tells(tensor: Tensor) -> bool:
    """Whether it has several numbers, not all the same: others keep every relation by chance."""
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.numel() < FEW:
        return False
    if not can_differ(tensor):
        return is_index(tensor) and bool((tensor != tensor.flatten()[0]).any())
    return not _is_evenly_spaced(tensor)


def _is_evenly_spaced(x: Tensor) -> bool:
    """Whether it is constant, or counted up: some numbers, for whoever does not care which."""
    flat = x.double().flatten()
    steps = flat[1:] - flat[:-1]
    return bool(((steps - steps[0]).abs() <= NEAR[x.element_size()] * flat.abs().max()).all())


# ---- one tensor ----


def _is_one_hot(x: Tensor) -> bool:
    return x.dim() > 0 and x.shape[-1] > 1 and _is_binary(x) and bool((x.sum(-1) == 1).all())


def _is_binary(x: Tensor) -> bool:
    return can_differ(x) and bool(((x == 0) | (x == 1)).all())


def _sums_to_one(x: Tensor) -> bool:
    if not can_differ(x) or not x.dim() or x.shape[-1] < 2 or bool((x < 0).any()):
        return False
    return bool(((x.double().sum(-1) - 1).abs() < NEAR[x.element_size()]).all())


def _has_unit_rows(x: Tensor) -> bool:
    if not can_differ(x) or not x.dim() or x.shape[-1] < 2:
        return False
    return bool(((x.double().norm(dim=-1) - 1).abs() < NEAR[x.element_size()]).all())


def _is_symmetric(x: Tensor) -> bool:
    if not _is_square(x):
        return False
    off = (x - x.transpose(-1, -2)).abs().max()
    return bool(off <= NEAR[x.element_size()] * x.abs().max())


def _is_positive_definite(x: Tensor) -> bool:
    if not _is_symmetric(x):
        return False
    least = torch.linalg.eigvalsh(x.double()).amin(-1)
    return bool((least > 0).all())


def _is_lower(x: Tensor) -> bool:
    return _is_square(x) and bool((x.triu(1) == 0).all())


def _is_upper(x: Tensor) -> bool:
    return _is_square(x) and bool((x.tril(-1) == 0).all())


def _is_square(x: Tensor) -> bool:
    return can_differ(x) and x.dim() > 1 and x.shape[-1] == x.shape[-2] > 1


def _is_sorted(x: Tensor) -> bool:
    return x.dim() > 0 and x.shape[-1] >= FEW and bool((x[..., 1:] >= x[..., :-1]).all())


def _is_permutation(x: Tensor) -> bool:
    if not is_index(x) or not x.dim():
        return False
    order = torch.arange(x.shape[-1], device=x.device).expand(x.shape)
    return torch.equal(x.sort(-1).values, order.to(x.dtype))


ALONE: dict[str, Callable[[Tensor], bool]] = {
    "one-hot rows": _is_one_hot,
    "zeros and ones": _is_binary,
    "rows that sum to one": _sums_to_one,
    "rows of norm one": _has_unit_rows,
    "a positive definite matrix": _is_positive_definite,
    "a symmetric matrix": _is_symmetric,
    "a lower triangular matrix": _is_lower,
    "an upper triangular matrix": _is_upper,
    "a permutation": _is_permutation,
    "sorted numbers": _is_sorted,
}


# ---- two tensors ----


def _are_equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)


def _are_flipped(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    dims = [tuple(range(first, x.dim())) for first in range(x.dim())]
    return any(torch.equal(x.flip(some), y) for some in dims)


def _are_transposed(x: Tensor, y: Tensor) -> bool:
    return x.dim() > 1 and x.dtype == y.dtype and torch.equal(x.transpose(-1, -2), y)


def _are_inverse(x: Tensor, y: Tensor) -> bool:
    if not (_is_permutation(x) and _is_permutation(y)) or x.shape != y.shape:
        return False
    return torch.equal(x.argsort(-1).to(y.dtype), y)


def _is_never_above(x: Tensor, y: Tensor) -> bool:
    is_many = x.shape == y.shape and x.dtype == y.dtype and x.numel() > 2 * FEW
    return is_many and bool((x <= y).all())


TOGETHER: dict[str, Callable[[Tensor, Tensor], bool]] = {
    "equal tensors": _are_equal,
    "permutations that are each other's inverse": _are_inverse,
    "a tensor and its flip": _are_flipped,
    "a matrix and its transpose": _are_transposed,
    "one that is never above the other": _is_never_above,
}


def words_of(relation: Relation, names: Sequence[str]) -> str:
    """A relation in words: "`target`: one-hot rows"."""
    return f"{', '.join(f'`{names[i]}`' for i in relation.positions)}: {relation.words}"


def broken_by(example: Example, relations: Sequence[Relation]) -> Relation | None:
    """The first relation that an example breaks; None if it keeps all."""
    return next((r for r in relations if not r.is_kept(example)), None)
