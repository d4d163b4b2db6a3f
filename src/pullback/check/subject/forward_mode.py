"""The user's `jvp`, run by forward-mode differentiation."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pullback.check.subject.subject import Subject
from pullback.function.isolation import seeded
from pullback.judge.example import Example, tensors_in
from pullback.judge.run import cotangent_of

DRAW = 900  # beside the draws of cotangents, which begin at 0


def tangents_of(example: Example, draw: int, scale: float = 1.0) -> dict[int, Tensor]:
    """The `draw`-th tangent of each argument that requires grad, by position."""
    found: dict[int, Tensor] = {}
    for i in sorted(example.needs):
        tangent = cotangent_of(example.args[i], DRAW + 100 * i + draw)
        if tangent is not None:
            found[i] = scale * tangent
    return found


def pushed(subject: Subject, example: Example, tangents: dict[int, Tensor]) -> list[Tensor | None]:
    """The tangent of each output, None where it has none; raises as the user's code does."""
    args = list(example.fresh(needs=frozenset()))
    with forward_ad.dual_level(), warnings.catch_warnings(), seeded():
        warnings.simplefilter("ignore")
        for i, tangent in tangents.items():
            args[i] = forward_ad.make_dual(args[i], tangent.to(args[i].dtype))
        outputs = tensors_in(subject.target.call(*args))
        found = [forward_ad.unpack_dual(output).tangent for output in outputs]
    return [None if t is None else t.detach().clone() for t in found]


def paired_sum(one: Sequence[Tensor | None], two: Sequence[Tensor | None]) -> tuple[float, float]:
    """`Re <one, two>` over all pairs, and the sum of the sizes of its terms."""
    total = size = 0.0
    for a, b in zip(one, two, strict=True):
        if a is None or b is None or a.shape != b.shape:
            continue
        wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
        product = a.detach().to(wide).conj() * b.detach().to(wide)
        total += float((product.real if product.is_complex() else product).sum())
        size += float(product.abs().sum())
    return total, size
