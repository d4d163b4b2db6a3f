"""Memory around each tensor that a function sees, watched: what is written there, and read.

A kernel that runs past the end of a tensor meets what the allocator put there, which is nothing
that anybody misses, most of the time. So each tensor lies in the middle of a larger piece: inputs,
cotangents, and what PyTorch makes for the function on the way. The zones around it hold numbers
that are known: another one there was written, and results that change with them have read them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.capture.places import frames_above
from pullback.check.target.registration import near
from pullback.check.watching.dispatch import Fill, views_memory
from pullback.function.modes import DispatchMode
from pullback.function.slots import op_schema, storage_key
from pullback.judge.example import mapped, tensors_in

LEAST, MOST = 4096, 1 << 22  # elements of a zone; a longer tensor has zones as long as itself
MANY = 256  # tensors that PyTorch makes in a call: zones around more take memory and time
LONG = 2000  # operators of a call: a loop over them is no kernel, and watching each takes long
ALIGNED = 512  # bytes: the start of a tensor is as round as PyTorch's allocators give it
ORDINARY = 1.0  # what uninitialised memory holds


@dataclass(frozen=True, slots=True)
class Guarded:
    """A tensor in the middle of a larger piece of memory."""

    what: str
    memory: Tensor  # the whole piece, flat
    start: int  # elements before the tensor
    stop: int  # the first element after it
    zones: tuple[Tensor, Tensor]  # what stood around it at first

    def touched(self) -> Touched | None:
        """The element around it nearest to it that was written, if any was."""
        now = self.memory[: self.start], self.memory[self.stop :]
        ahead, behind = (_different(one, two) for one, two in zip(now, self.zones, strict=True))
        if behind.numel():
            place = int(behind[0])
            return Touched(self.what, place + 1, now[1][place].item(), is_behind=True)
        if ahead.numel():
            place = int(ahead[-1])
            return Touched(self.what, self.start - place, now[0][place].item(), is_behind=False)
        return None


@dataclass(frozen=True, slots=True)
class Touched:
    """An element around a tensor that was written: how far from it, and what stands there now."""

    what: str
    distance: int
    number: Any
    is_behind: bool

    def __str__(self) -> str:
        side = "behind the end" if self.is_behind else "before the beginning"
        plural = "" if self.distance == 1 else "s"
        return f"{self.distance} element{plural} {side} of {self.what}"


def _different(now: Tensor, before: Tensor) -> Tensor:
    """The places at which two rows differ in a bit."""
    size = now.element_size()
    one, two = (row.contiguous().view(torch.uint8).view(-1, size) for row in (now, before))
    return (one != two).any(1).nonzero().flatten()


class TooLongError(RuntimeError):
    """A call has so many operators that it is not watched to its end."""


class MemoryGuards(DispatchMode):
    """Inside, each tensor that PyTorch makes lies between zones; `put` does that to others.

    That is so for the first `MANY` of them; a call of more than `LONG` operators is ended.

    `spoils` says by its number whether the zones of a tensor hold NaN, or else an ordinary number.
    The numbers are given in order, so that those of two runs are the same.
    """

    def __init__(self, spoils: Callable[[int], bool]) -> None:
        DispatchMode.__init__(self)
        self._spoils = spoils
        self.made: list[Guarded] = []
        self._operators = 0

    def put(self, tensor: Tensor, what: str) -> Tensor:
        """A copy of the tensor between zones, or itself where it cannot be."""
        span = _span(tensor)
        if span is None:
            return tensor
        size = tensor.element_size()
        unit = math.lcm(ALIGNED, size) // size
        zone = -(-max(LEAST, span) // unit) * unit
        number = _beside(tensor, len(self.made), is_spoiled=self._spoils(len(self.made)))
        memory = torch.full((2 * zone + span,), number, dtype=tensor.dtype, device=tensor.device)
        held = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        held.set_(memory.untyped_storage(), zone, tensor.shape, tensor.stride())
        held.copy_(tensor.detach())
        stop = zone + span
        zones = memory[:zone].clone(), memory[stop:].clone()
        self.made.append(Guarded(what, memory, zone, stop, zones))
        return held.requires_grad_(tensor.requires_grad)

    def touched(self) -> Iterator[Touched]:
        """What was written around the tensors, the first of each."""
        for one in self.made:
            found = one.touched()
            if found is not None:
                yield found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._operators += 1
        if self._operators > LONG:
            raise TooLongError(f"a call has more than {LONG} operators")
        result = func(*args, **(kwargs or {}))
        if len(self.made) >= MANY:
            return result
        if views_memory(func) or any(out.alias_info is not None for out in op_schema(func).returns):
            return result
        name = func.overloadpacket.__name__
        given = {storage_key(t) for t in tensors_in((args, kwargs or {}))}

        def moved(tensor: Tensor) -> Tensor:
            if type(tensor) is not Tensor or storage_key(tensor) in given:
                return tensor
            if name in Fill.MAKERS and tensor.numel():
                tensor.fill_(ORDINARY)
            return self.put(tensor, f"a tensor of shape {list(tensor.shape)} made {_by_whom(name)}")

        return mapped(result, moved)


def _span(tensor: Tensor) -> int | None:
    """The elements from the first to the last of a tensor; None where it is of another kind."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return None
    if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.device.type == "meta":
        return None
    dims = [(n, step) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]
    if not tensor.numel() or any(step <= 0 for _, step in dims):
        return None
    span = sum((n - 1) * step for n, step in dims) + 1
    return span if span <= MOST else None


def _beside(tensor: Tensor, count: int, *, is_spoiled: bool) -> Any:
    """What stands beside a tensor: another number for each, so that a copy of one is seen.

    Beside integers it is one of its own, since it may be an index.
    """
    if tensor.dtype == torch.bool:
        return is_spoiled
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return int(tensor.max() if is_spoiled else tensor.min())
    return math.nan if is_spoiled else 0.75 + (count % 31) / 128


def _by_whom(name: str) -> str:
    """The operator that made a tensor, and the line of the user's that asked for it."""
    frame = next(frames_above(sys._getframe(2)), None)
    place = f" at {near(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""
    return f"by `{name}`{place}"
