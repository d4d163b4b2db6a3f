"""How far a gradient in low precision is from the truth, next to PyTorch's own in that dtype.

The truth is the gradient in float64 at the very same values. Low-precision eager is never the
truth: it only says how much error is usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pullback.check.subject.subject import Subject
from pullback.judge.example import Example
from pullback.judge.mismatch import index_of
from pullback.judge.run import BackwardFailedError, ForwardRefusedError, Run, copies_of
from pullback.judge.tolerances import ALIKE, FLOOR, SUSPECT

Cotangents = Sequence["Tensor | None"]


@dataclass(frozen=True, slots=True)
class Precision:
    """One gradient in low precision: errors as shares of the largest true entry, or of a floor."""

    name: str
    index: tuple[int, ...]
    expected: float
    got: float
    error: float
    usual: float  # the same share for PyTorch's own gradient of forward, in the same dtype


def precisions(
    subject: Subject, example: Example, cotangents: Cotangents | None = None
) -> Iterator[Precision]:
    """How precise each gradient is for an example in low precision; nothing where unknown."""
    try:
        called = subject.run(example)
        if not called.live:
            return
        given = subject.cotangents(called) if cotangents is None else cotangents
        grads = called.pull(copies_of(given))
        exact = subject.run(example.double())
        wide = tuple(None if c is None else c.detach().double() for c in given)
        if not _agree(called, exact):
            return
        truths = exact.pull(copies_of(wide))
    except (ForwardRefusedError, BackwardFailedError):
        return
    positions = {name: i for i, name in enumerate(called.names) if name in grads}
    eager = subject.reference.gradients(example, given, tuple(positions.values()))
    if eager is None:
        return
    for name, got in grads.items():
        truth, usual = truths.get(name), eager.get(positions[name])
        if got is None or truth is None or usual is None or not truth.numel():
            continue
        if name in subject.wrong_names or subject.target.intent.is_surrogate(name):
            continue
        found = _precision(name, got.detach(), truth.detach(), usual.detach())
        if found is not None and found.error > SUSPECT:
            found = replace(found, usual=found.usual + _swing(subject, example, wide, name, truth))
        if found is not None:
            yield found


def _swing(
    subject: Subject, example: Example, cotangents: Cotangents, name: str, truth: Tensor
) -> float:
    """How much the true gradient changes when the inputs are off by a rounding error.

    Next to a kink or a cancellation that is much, and no fault of backward's.
    """
    exact = example.double()
    scale = max(float(truth.abs().max()), FLOOR)
    most = 0.0
    for draw in range(3):
        generator = torch.Generator().manual_seed(draw)
        near = exact
        for i in exact.differentiable:
            value = exact.args[i]
            step = 2 * torch.finfo(example.args[i].dtype).eps
            sign = torch.randint(0, 2, value.shape, generator=generator) * 2.0 - 1
            sign = (sign if draw else torch.ones_like(sign)).to(value.device)
            near = near.put(i, value * (1 + step * (sign if draw < 2 else -sign)), near.label)
        try:
            called = subject.run(near)
            got = called.pull(copies_of(cotangents)).get(name)
        except (ForwardRefusedError, BackwardFailedError, RuntimeError):
            return float("inf")
        if got is None or got.shape != truth.shape:
            return float("inf")
        most = max(most, float((got.detach().double() - truth.detach()).abs().max()) / scale)
    return most


def _agree(called: Run, exact: Run) -> bool:
    """Whether forward is about the same function in both dtypes."""
    return all(
        ALIKE.admits(have, want) if have.requires_grad else have.shape == want.shape
        for have, want in zip(called.outputs, exact.outputs, strict=False)
    )


def _precision(name: str, got: Tensor, truth: Tensor, usual: Tensor) -> Precision | None:
    if got.shape != truth.shape or not bool(torch.isfinite(truth).all()):
        return None
    scale = max(float(truth.abs().max()), FLOOR)
    if not bool(torch.isfinite(usual).all()):
        return None
    apart = torch.nan_to_num((got.double() - truth).abs(), nan=float("inf"))
    flat = int(apart.flatten().argmax())
    return Precision(
        name,
        index_of(flat, truth.shape),
        float(truth.flatten()[flat]),
        float(got.flatten()[flat]),
        float(apart.max()) / scale,
        float((usual.double() - truth).abs().max()) / scale,
    )
