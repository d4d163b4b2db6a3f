"""What tensors held at one moment, to see later what was written into them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.findings.facts import Number, Thing, Words, shapes
from pullback.judge.mismatch import index_of


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor that was written into: which, where, and the number before and after.

    `place` is its number among those that were looked at.
    """

    thing: Thing
    place: int
    index: tuple[int, ...]
    before: Number | Words
    after: Number | Words
    is_freed: bool = False


class Snapshot:
    """Copies of named tensors, compared with them later."""

    def __init__(self, tensors: Iterable[tuple[Thing, Tensor]]) -> None:
        self._kept = [(thing, tensor, tensor.detach().clone()) for thing, tensor in tensors]

    def changes(self) -> Iterator[Change]:
        """The tensors that no longer hold what they held."""
        for place, (thing, tensor, before) in enumerate(self._kept):
            if is_freed(tensor):
                yield Change(thing, place, (), Words("its memory"), Words("freed"), is_freed=True)
                continue
            now = tensor.detach()
            if now.shape != before.shape:
                yield Change(thing, place, (), *shapes(before, now))
                continue
            differs = now != before
            if now.is_floating_point() or now.is_complex():
                differs &= ~(now.isnan() & before.isnan())
            if not bool(differs.any()):
                continue
            flat = int(differs.flatten().to(torch.uint8).argmax())
            yield Change(
                thing,
                place,
                index_of(flat, before.shape),
                Number(before.flatten()[flat].item()),
                Number(now.flatten()[flat].item()),
            )


def is_freed(tensor: Tensor) -> bool:
    """Whether the memory of a tensor with elements is gone: reading it would end the process."""
    if tensor.layout != torch.strided or not tensor.numel():
        return False
    try:
        return tensor.untyped_storage().nbytes() == 0
    except (RuntimeError, NotImplementedError):
        return False  # a wrapper, which has none


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether writing into `a` would show in `b`: their elements lie in the same memory."""
    if a.numel() == 0 or b.numel() == 0 or a.layout != torch.strided or b.layout != torch.strided:
        return False
    if a.device != b.device:
        return False
    try:
        one, two = _span(a), _span(b)
    except (RuntimeError, NotImplementedError):
        return False
    if one[1] <= two[0] or two[1] <= one[0]:
        return False
    unit = math.gcd(a.element_size(), b.element_size(), one[0] - two[0])
    return bool(torch.isin(_addresses(a, unit), _addresses(b, unit)).any())


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first address of the elements, and the first one after them."""
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (reach + 1) * tensor.element_size()


def _addresses(tensor: Tensor, unit: int) -> Tensor:
    """The addresses of the elements in pieces of `unit` bytes; of a huge tensor, of its ends."""
    offsets = torch.zeros((), dtype=torch.int64)
    is_huge = tensor.numel() > 1_000_000
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        steps = torch.tensor([0, size - 1]) if is_huge else torch.arange(size)
        offsets = offsets.unsqueeze(-1) + steps * stride
    pieces = torch.arange(0, tensor.element_size(), unit)
    starts = tensor.data_ptr() + offsets.flatten() * tensor.element_size()
    found: Tensor = starts[:, None] + pieces
    return found.flatten()
