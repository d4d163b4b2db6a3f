"""What tensors held at one moment, to see later what was written into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.mismatch import index_of, number


@dataclass(frozen=True, slots=True)
class Change:
    """One tensor that was written into: its name, where, and the number before and after."""

    name: str
    index: tuple[int, ...]
    before: str
    after: str


class Snapshot:
    """Copies of named tensors, compared with them later."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._kept = [(name, tensor, tensor.detach().clone()) for name, tensor in tensors]

    def changes(self) -> Iterator[Change]:
        """The tensors that no longer hold what they held."""
        for name, tensor, before in self._kept:
            now = tensor.detach()
            if now.shape != before.shape:
                yield Change(name, (), f"shape {list(before.shape)}", f"shape {list(now.shape)}")
                continue
            differs = now != before
            if now.is_floating_point() or now.is_complex():
                differs &= ~(now.isnan() & before.isnan())
            if not bool(differs.any()):
                continue
            flat = int(differs.flatten().to(torch.uint8).argmax())
            yield Change(
                name,
                index_of(flat, before.shape),
                number(before.flatten()[flat].item()),
                number(now.flatten()[flat].item()),
            )


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether writing into `a` would show in `b`: their elements lie in the same memory."""
    if a.numel() == 0 or b.numel() == 0 or a.layout != torch.strided or b.layout != torch.strided:
        return False
    try:
        if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
            return False
    except (RuntimeError, NotImplementedError):
        return False
    return bool(_addresses(a) & _addresses(b))


def _addresses(tensor: Tensor) -> set[int]:
    """The addresses of (some of) the elements: all of a small tensor, the ends of a large one."""
    offsets = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        steps = torch.arange(size) if tensor.numel() <= 65536 else torch.tensor([0, size - 1])
        offsets = offsets.unsqueeze(-1) + steps * stride
    start = tensor.storage_offset()
    return {(start + int(o)) * tensor.element_size() for o in offsets.flatten()}
