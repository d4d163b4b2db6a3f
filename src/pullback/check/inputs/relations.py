"""Relations that the arguments of an example show, and that other arguments keep.

One-hot targets, a symmetric matrix, a permutation and its inverse, a kernel and its flip: what a
function is always called with is part of what it was promised, and what it does with other
arguments is no defect. So arguments that break a relation of the examples are not tried; those of
other sizes are made to keep it, where that can be done. Only relations count that random numbers do
not show by chance, and that more than one number shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from pullback.capture.indices import is_index
from pullback.judge.example import Example, can_differ

FEW = 5  # numbers that may be in order by chance
LEAST = 3  # numbers of a tensor that is said to go with another one
NEAR = {2: 1e-2, 4: 1e-4, 8: 1e-4}  # by the bytes of a number: sums of what was rounded


@dataclass(frozen=True, slots=True)
class Relation:
    """What holds of the arguments at these positions, in words and as a test.

    `restored` gives the last of these arguments as one with which it holds, from all of them.
    """

    words: str
    positions: tuple[int, ...]
    holds: Callable[..., bool]
    restored: Callable[..., Tensor] | None = None
    is_stated: bool = False  # by the user, of plain arguments too

    @property
    def is_of_lengths(self) -> bool:
        """Whether whole numbers sum to a size: indices may do so by chance."""
        return self.holds is _are_counts

    def is_kept(self, example: Example) -> bool:
        """Whether it holds in another example; of nothing, everything does."""
        if max(self.positions) >= len(example.args):
            return True
        values = [example.args[i] for i in self.positions]
        if not all(self._tells(value) for value in values):
            return True
        given = (value.detach() if isinstance(value, Tensor) else value for value in values)
        return self.holds(*given)

    def _tells(self, value: Any) -> bool:
        return value.numel() > 0 if isinstance(value, Tensor) else self.is_stated


def relations_of(examples: Sequence[Example], *, few: bool = False) -> tuple[Relation, ...]:
    """What holds in all of the examples.

    Three tensors of one shape go together by their entries. Two may be of one shape by chance, and
    broadcast otherwise; with `few` they go together as well, as where forward reads but one.
    """
    first, *others = examples
    return tuple(r for r in _shown(first, few) if all(r.is_kept(other) for other in others))


def _shown(example: Example, few: bool) -> Iterator[Relation]:
    tensors = {i: example.args[i].detach() for i in example.tensors}
    telling = {i: t for i, t in tensors.items() if _tells(t)}
    for i, tensor in telling.items():
        if tensor.numel() < FEW and not _is_square(tensor):
            continue
        for words, (holds, restored) in ALONE.items():
            if holds is _is_permutation and _is_counted(tensor):
                continue  # 0, 1, 2, ... are some indices, for whoever does not care which
            if holds(tensor):
                yield Relation(words, (i,), holds, restored)
                break  # the narrowest
    alike = [i for i in example.differentiable if tensors[i].dim()]
    if len(alike) > 2 - few and _have_one_shape(*(tensors[i] for i in alike)):
        yield Relation("tensors of one shape", tuple(alike), _have_one_shape)
    seen: set[tuple[str, int, int]] = set()
    for i, j in permutations(tensors, 2):
        for words, (test, made) in TOGETHER.items():
            is_telling = j in telling or test in OF_SIZES
            if i in telling and is_telling and test(tensors[i], tensors[j]):
                if (words, j, i) not in seen:
                    yield Relation(words, (i, j), test, made)
                seen.add((words, i, j))
                break


def _tells(tensor: Tensor) -> bool:
    """Whether it has several numbers, not all the same: others keep every relation by chance."""
    if type(tensor) not in (Tensor, Parameter) or tensor.layout != torch.strided:
        return False  # numbers that are kept in some other way
    if tensor.is_complex() or tensor.numel() < LEAST:
        return False
    if not can_differ(tensor):
        return is_index(tensor) and bool((tensor != tensor.flatten()[0]).any())
    return not _is_evenly_spaced(tensor)


def _is_counted(x: Tensor) -> bool:
    return torch.equal(x.flatten(), torch.arange(x.numel(), dtype=x.dtype, device=x.device))


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
    if not bool(((x != 0).sum(-1) > 1).all()):
        return False  # a single one among zeros
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


def _mirrored(x: Tensor) -> Tensor:
    """A matrix transposed; a kernel of convolution as its own adjoint has it."""
    return x.mT if x.dim() < 4 else x.transpose(0, 1).flip(tuple(range(2, x.dim())))


def _is_skew(x: Tensor) -> bool:
    square = x.shape[0] == x.shape[1] if x.dim() > 3 else _is_square(x)
    return can_differ(x) and square and torch.equal(x, -_mirrored(x))


def _is_palindrome(x: Tensor) -> bool:
    is_long = can_differ(x) and x.dim() > 0 and max(x.shape) >= LEAST
    return is_long and torch.equal(x, x.flip(tuple(range(x.dim()))))


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
    order = torch.arange(x.shape[-1], device=x.device).expand(x.shape).to(x.dtype)
    return torch.equal(x.sort(-1).values, order)


def _one_hot(x: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 1)


def _shares(x: Tensor) -> Tensor:
    parts = x.abs() + 0.05
    return parts / parts.sum(-1, keepdim=True)


def _definite(x: Tensor) -> Tensor:
    square = x @ x.mT / x.shape[-1]
    return square + torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)


Holds = Callable[..., bool]
Restored = Callable[..., Tensor]

ALONE: dict[str, tuple[Holds, Restored | None]] = {
    "one-hot rows": (_is_one_hot, _one_hot),
    "zeros and ones": (_is_binary, None),
    "rows that sum to one": (_sums_to_one, _shares),
    "rows of norm one": (_has_unit_rows, lambda x: x / x.norm(dim=-1, keepdim=True)),
    "a positive definite matrix": (_is_positive_definite, _definite),
    "a symmetric matrix": (_is_symmetric, lambda x: (x + x.mT) / 2),
    "a skew matrix or kernel": (_is_skew, lambda x: x - _mirrored(x)),
    "a tensor that is its own flip": (
        _is_palindrome,
        lambda x: (x + x.flip(tuple(range(x.dim())))) / 2,
    ),
    "a lower triangular matrix": (_is_lower, torch.tril),
    "an upper triangular matrix": (_is_upper, torch.triu),
    "a permutation": (_is_permutation, lambda x: x.argsort(-1).to(x.dtype)),
    "sorted numbers": (_is_sorted, lambda x: x.sort(-1).values),
}


# ---- two tensors ----


def _have_one_shape(*tensors: Tensor) -> bool:
    return len({tuple(tensor.shape) for tensor in tensors}) == 1


def _are_equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and x.dtype == y.dtype and torch.equal(x, y)


def _are_flipped(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    dims = [tuple(range(first, x.dim())) for first in range(x.dim())]
    return any(torch.equal(x.flip(some), y) for some in dims)


def _are_transposed(x: Tensor, y: Tensor) -> bool:
    is_pair = x.dim() > 1 and x.dtype == y.dtype and x.numel() >= FEW
    return is_pair and torch.equal(x.transpose(-1, -2), y)


def _are_inverse(x: Tensor, y: Tensor) -> bool:
    if not (_is_permutation(x) and _is_permutation(y)) or x.shape != y.shape:
        return False
    return torch.equal(x.argsort(-1).to(y.dtype), y)


def _is_never_above(x: Tensor, y: Tensor) -> bool:
    is_many = x.shape == y.shape and x.dtype == y.dtype and x.numel() > 2 * FEW
    return is_many and bool((x <= y).all())


def _are_starts_and_counts(x: Tensor, y: Tensor) -> bool:
    if not (is_index(x) and is_index(y)) or x.shape != y.shape or x.dim() != 1:
        return False
    return bool((y >= 0).all()) and torch.equal(x[1:], (x + y)[:-1])


def _are_counts(x: Tensor, y: Tensor) -> bool:
    """Whether whole numbers sum to a size of the other, as the lengths of its parts do."""
    if not is_index(x) or x.dim() != 1 or x.numel() in y.shape or bool((x < 0).any()):
        return False
    return int(x.sum()) in [size for size in y.shape if size > x.numel()]


def _are_offsets(x: Tensor, y: Tensor) -> bool:
    """Whether whole numbers go from 0 up to a size of the other, as the bounds of its parts do."""
    if not is_index(x) or x.dim() != 1 or x.numel() in y.shape or int(x[0]) != 0:
        return False
    return int(x[-1]) in y.shape and not _is_counted(x) and bool((x[1:] >= x[:-1]).all())


def _have_extents(x: Tensor, y: Tensor) -> bool:
    """Whether rows of whole numbers reach up to the last sizes of the other, column by column."""
    if not is_index(y) or y.dim() != 2 or not 1 < y.shape[1] <= x.dim() or bool((y < 0).any()):
        return False
    return y.amax(0).tolist() == list(x.shape[-y.shape[1] :])


def _extents(x: Tensor, y: Tensor) -> Tensor:
    sizes = torch.tensor(x.shape[-y.shape[1] :], dtype=y.dtype, device=y.device)
    return torch.where(y == y.amax(0), sizes, torch.minimum(y, sizes))


def _bounds(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x, y)


# Which part of a gradient counts where inputs keep a relation: steps that break it are not taken.
# From the tensor and a gradient, or a step; each is a projection that is its own transpose.
TANGENTS: dict[str, Restored] = {
    "rows that sum to one": lambda _, g: g - g.mean(-1, keepdim=True),
    "rows of norm one": lambda x, g: g - x * (x * g).sum(-1, keepdim=True),
    "a positive definite matrix": lambda _, g: (g + g.mT) / 2,
    "a symmetric matrix": lambda _, g: (g + g.mT) / 2,
    "a skew matrix or kernel": lambda _, g: (g - _mirrored(g)) / 2,
    "a tensor that is its own flip": lambda _, g: (g + g.flip(tuple(range(g.dim())))) / 2,
    "a lower triangular matrix": lambda _, g: g.tril(),
    "an upper triangular matrix": lambda _, g: g.triu(),
}


TOGETHER: dict[str, tuple[Holds, Restored | None]] = {
    "equal tensors": (_are_equal, lambda x, _: x.clone()),
    "permutations that are each other's inverse": (
        _are_inverse,
        lambda x, y: x.argsort(-1).to(y.dtype),
    ),
    "a tensor and its flip": (_are_flipped, None),
    "a matrix and its transpose": (_are_transposed, lambda x, _: x.mT.contiguous()),
    "starts of parts and their lengths": (_are_starts_and_counts, None),
    "lengths of the parts of the other": (_are_counts, None),
    "bounds of the parts of the other": (_are_offsets, None),
    "a tensor and how far each of its rows goes": (_have_extents, _extents),
    "one that is never above the other": (_is_never_above, _bounds),
}
OF_SIZES = (_are_counts, _are_offsets)  # these ask for the shape of the other alone


def restored(example: Example, relations: Sequence[Relation]) -> Example:
    """The example with the relations that it breaks restored, where that can be done."""
    for relation in relations:
        if relation.restored is not None and not relation.is_kept(example):
            values = [example.args[i] for i in relation.positions]
            if not all(isinstance(value, Tensor) for value in values):
                continue
            values = [value.detach() for value in values]
            try:
                made = relation.restored(*values)
            except RuntimeError:  # not of a shape for it: such an example is not tried
                continue
            example = example.put(relation.positions[-1], made, example.label, example.kind)
    return example


def allowed_tangents(
    example: Example, relations: Sequence[Relation]
) -> dict[int, Callable[[Tensor], Tensor]]:
    """For each argument with a relation of its own: the part of a gradient that counts there."""
    found: dict[int, Callable[[Tensor], Tensor]] = {}
    for relation in relations:
        tangent = TANGENTS.get(relation.words)
        if tangent is not None and relation.positions[0] < len(example.args):
            value = example.args[relation.positions[0]]
            if isinstance(value, Tensor) and value.numel():
                found[relation.positions[0]] = partial(_part_along, tangent, value.detach())
    return found


def _part_along(tangent: Restored, value: Tensor, gradient: Tensor) -> Tensor:
    if gradient.shape != value.shape:
        return gradient
    return tangent(value.to(gradient), gradient)


def words_of(relation: Relation, names: Sequence[str]) -> str:
    """A relation in words: "`target`: one-hot rows"."""
    return f"{', '.join(f'`{names[i]}`' for i in relation.positions)}: {relation.words}"


def broken_by(example: Example, relations: Sequence[Relation]) -> Relation | None:
    """The first relation that an example breaks; None if it keeps all."""
    return next((r for r in relations if not r.is_kept(example)), None)
