"""The bytes that a call keeps for its backward, and the most that it holds at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler_legacy


def saved_bytes(run: Callable[[], Any], spared: Iterable[Tensor]) -> int:
    """The bytes that `run` keeps for backward, besides the memory of the tensors in `spared`.

    Memory that is kept several times, or through several views, counts once.
    """
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)  # alive until the end, so that no other takes its memory
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    sizes = {_memory(tensor): tensor.untyped_storage().nbytes() for tensor in kept}
    free = {_memory(tensor) for tensor in spared}
    return sum(size for memory, size in sizes.items() if memory not in free)


def _memory(tensor: Tensor) -> tuple[Any, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int | None:
    """The most bytes that `run` holds at once, besides earlier ones; None if not measurable."""
    if device.type == "cuda":
        return _peak_of_cuda(run, device)
    return _peak_of_cpu(run) if device.type == "cpu" else None


def _peak_of_cuda(run: Callable[[], Any], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def _peak_of_cpu(run: Callable[[], Any]) -> int | None:
    """By PyTorch's old profiler: the new one starts a thread that stays, and writes to the screen.

    It sees each allocation of this thread, by ops and by compiled code.
    """
    old: Any = profiler_legacy
    try:
        old._enable_profiler_legacy(old.profile(profile_memory=True).config())
    except (
        AttributeError,
        TypeError,
        RuntimeError,
    ):  # another torch version, or a profiler is running
        return None
    try:
        run()
    finally:
        records = old._disable_profiler_legacy()
    peak = 0
    for thread in records:
        held = 0
        for event in thread:
            if event.kind() == "memory_alloc":
                held += event.cpu_memory_usage()
                peak = max(peak, held)
    return peak
