"""Where a result is not what it must be, as the facts of a finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Gradient, Number, Thing, Words, numbers, shapes
from pullback.judge.example import wide_of
from pullback.judge.mismatch import index_of
from pullback.judge.tolerances import is_close

Fact = Number | Words
Gradients = dict[str, Tensor | None]


@dataclass(frozen=True, slots=True)
class Gap:
    """Where two tensors differ most, and both numbers; else both shapes, or which is missing."""

    at: At
    expected: Fact
    got: Fact

    @property
    def name(self) -> str:
        """The input whose gradient it is; empty for anything else."""
        return self.at.thing.name if isinstance(self.at.thing, Gradient) else ""

    def facts(self, rest: str = "", *, expected: str = "", got: str = "") -> dict[str, Any]:
        """The place and both values for a finding, each with what is said of it besides."""
        return {
            "at": self.at.then(rest),
            "expected": self.expected.then(expected) if expected else self.expected,
            "got": self.got.then(got) if got else self.got,
        }


def gap_of(thing: Thing, got: Tensor | None, expected: Tensor | None) -> Gap:
    """How far what came of a thing is from what it must be."""
    if got is None or expected is None:
        return Gap(At(thing), _there(expected), _there(got))
    if got.shape != expected.shape:
        return Gap(At(thing), *shapes(expected, got))
    index, have, want = worst_of(got, expected)
    return Gap(At(thing, index), want, have)


def gaps(now: Gradients, before: Gradients) -> Iterator[Gap]:
    """The gradients that came otherwise than before, of those that are there in one shape."""
    for name, new in now.items():
        old = before.get(name)
        if new is None or old is None or new.shape != old.shape or is_close(new, old, 100):
            continue
        yield gap_of(Gradient(name), new, old)


def copied(grads: Gradients) -> Gradients:
    """The gradients as they are now, whatever is written into them later."""
    return {name: None if g is None else g.detach().clone() for name, g in grads.items()}


def worst_of(a: Tensor, b: Tensor) -> tuple[tuple[int, ...], Number, Number]:
    """Where two tensors of one shape differ most: the index, and both numbers."""
    apart = wide_of(a) - wide_of(b)
    size = torch.nan_to_num(apart.abs(), nan=float("inf"))
    if not size.numel():
        return (), Number(None), Number(None)
    flat = int(size.flatten().argmax())
    one, two = (tensor.detach().flatten()[flat].item() for tensor in (a, b))
    return index_of(flat, a.shape), *numbers(one, two)


def _there(tensor: Tensor | None) -> Words:
    return Words("None" if tensor is None else f"shape {list(tensor.shape)}")
