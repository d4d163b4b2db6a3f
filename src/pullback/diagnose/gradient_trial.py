"""One trial: what went in, the gradients that came out, and where they are wrong.

Two gradients are the same if they differ by no more than rounding: relative to each element, and
to the largest one. Where PyTorch's own derivative is not finite, nothing is judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pullback.judge.mismatch import Mismatch, index_of
from pullback.judge.tolerances import (
    DRIVEN,
    EXACT,
    HIDDEN,
    ROUGH,
    Measure,
    Tolerance,
    largest_entry,
)

LARGE_INPUTS = 4096
"""More numbers than these in the inputs of a trial are too many to try hundreds of edits on."""


@dataclass(frozen=True, slots=True, eq=False)
class GradientTrial:
    """One run of both: what went in, and the gradients of the inputs that need one.

    `got` is what the user's backward returned, in the shape it has there; `number` is the state
    of the random numbers; `is_rough` says that less than double precision was computed in.
    """

    number: int
    tensors: tuple[Tensor, ...]
    cotangents: tuple[Tensor, ...]
    expected: tuple[Tensor | None, ...]
    got: tuple[Tensor | None, ...]
    is_rough: bool = False
    _wrong: dict[int, Tensor] = field(default_factory=dict)
    _measures: dict[int, Measure] = field(default_factory=dict)

    def wrong(self, place: int) -> Tensor:
        """Where the gradient at `place` is wrong, as a mask of the shape of its input."""
        if place not in self._wrong:
            self._wrong[place] = self.differs(*self.pair(place))
        return self._wrong[place]

    def is_wrong(self, place: int) -> bool:
        """Whether the gradient at `place` is wrong anywhere."""
        return place in self.misfits or bool(self.wrong(place).any())

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs."""
        return tuple(tuple(tensor.shape) for tensor in self.tensors)

    @property
    def is_large(self) -> bool:
        """Whether there are too many numbers to try hundreds of edits on."""
        return sum(tensor.numel() for tensor in self.tensors) > LARGE_INPUTS

    @property
    def misfits(self) -> set[int]:
        """The places of the gradients that have not the shape of their inputs."""
        pairs = enumerate(zip(self.expected, self.got, strict=True))
        both = ((place, e, g) for place, (e, g) in pairs if e is not None and g is not None)
        return {place for place, e, g in both if e.shape != g.shape}

    def pair(self, place: int) -> tuple[Tensor, Tensor]:
        """Both gradients at `place`, with zeros for None; shapes may differ."""
        expected, got = self.expected[place], self.got[place]
        like = expected if expected is not None else got
        if like is None:
            return torch.zeros(()), torch.zeros(())
        zeros = torch.zeros_like(like)
        return (zeros if expected is None else expected), (zeros if got is None else got)

    def worst(self, place: int) -> tuple[int, ...]:
        """The index of the element that is off by most; what is not finite is worst of all."""
        expected, got = self.pair(place)
        apart = torch.where(torch.isfinite(got), (got - expected).abs(), torch.inf)
        return index_of(int(torch.where(self.wrong(place), apart, -1.0).argmax()), apart.shape)

    def sees(self, place: int, mismatch: Mismatch) -> bool:
        """Whether autograd gives what finite differences give where the gradient is worst."""
        if mismatch.index is None:
            return self.expected[place] is not None
        return HIDDEN.is_near(complex(self.pair(place)[0][mismatch.index]), mismatch.expected)

    def differs(self, expected: Tensor, got: Tensor) -> Tensor:
        """Where `got` differs from `expected`, by more than rounding."""
        if expected.shape != got.shape:
            return torch.ones(expected.shape, dtype=torch.bool, device=expected.device)
        return self.measure(expected).differs(got)

    def measure(self, expected: Tensor) -> Measure:
        """The comparison with a right gradient, in this trial."""
        return self.tolerance(expected).measure(expected)

    def tolerance(self, expected: Tensor) -> Tolerance:
        """How far a gradient may be from `expected`, in this trial."""
        is_exact = torch.finfo(expected.dtype).bits == 64 and not self.is_rough
        usual = EXACT if is_exact else ROUGH
        driven = max((largest_entry(cotangent) for cotangent in self.cotangents), default=0.0)
        return replace(usual, floor=DRIVEN * usual.scaled * driven)

    def accepts(self, place: int, gradient: Tensor | None) -> bool:
        """Whether another gradient at `place` would be right; None is as good as zeros."""
        expected = self.expected[place]
        if gradient is None or expected is None:
            return self.agrees(expected, gradient)
        if place not in self._measures:
            self._measures[place] = self.measure(expected)
        return self._measures[place].fits(gradient)

    def agrees(self, expected: Tensor | None, got: Tensor | None) -> bool:
        """Whether two gradients are the same; None is as good as zeros."""
        if expected is None or got is None:
            known = expected if expected is not None else got
            return known is None or self.agrees(torch.zeros_like(known), known)
        return expected.shape == got.shape and not bool(self.differs(expected, got).any())
