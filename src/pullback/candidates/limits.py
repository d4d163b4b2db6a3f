"""What this machine can do, measured, and what a call needs at least.

A call must read every number that its results depend on, and write its results. Numbers that a
gradient flows to are such; of others it is not known, and they are not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pullback.candidates.calling import call_once, requiring_grad
from pullback.judge.example import Example, tensors_in

REPEATS = 7
LARGE = {"cpu": 1 << 27, "cuda": 1 << 29}
MATRIX = {"cpu": 512, "cuda": 4096}


def needs_of(call: Callable[..., Any], example: Example, *, gradients: bool) -> dict[str, float]:
    """Bytes and floating-point operations of the reference, by mode."""
    has_gradients = bool(example.needs) and gradients
    called = call_once(call, example, 1, gradients=has_gradients)
    written = sum(_bytes(t) for t in called.outputs)
    read = 0.0
    leaves = requiring_grad(called.args)
    for leaf, gradient in zip(leaves, called.gradients, strict=False):
        if gradient is not None:
            read += float((gradient != 0).double().mean()) * _bytes(leaf)
    returned = sum(_bytes(g) for g in called.gradients if g is not None)
    with FlopCounterMode(display=False) as counted:
        call_once(call, example, 1, gradients=False)
    needs = {
        "forward_bytes": read + written,
        "forward_flops": float(counted.get_total_flops()),
    }
    if has_gradients:
        with FlopCounterMode(display=False) as counted:
            call_once(call, example, 1, gradients=True)
        needs["backward_bytes"] = written + returned
        needs["both_bytes"] = read + 2 * written + returned
        needs["both_flops"] = float(counted.get_total_flops())
        needs["backward_flops"] = needs["both_flops"] - needs["forward_flops"]
    return needs


def _bytes(tensor: Tensor) -> float:
    return float(tensor.numel() * tensor.element_size())


def limits_of(example: Example, needs: dict[str, float]) -> dict[str, Any]:
    """Bytes and operations in a second, as fast as PyTorch does them here."""
    tensors = tensors_in(example.args)
    device = next((t.device for t in tensors if t.is_cuda), torch.device("cpu"))
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
    sizes = {LARGE[device.type], max(4096, int(needs["forward_bytes"]))}
    moved = max(_moved(size, device) for size in sorted(sizes))
    return {
        "device": str(device),
        "name": _name(device),
        "clock_mhz": _clock(device),
        "threads": torch.get_num_threads(),
        "bytes_per_second": moved,
        "flops_per_second": _computed(dtype, device),
        "cache_bytes": _cache(device),
    }


def _moved(size: int, device: torch.device) -> float:
    """Bytes in a second, read and written, by a copy of half as many."""
    source = torch.ones(max(size // 8, 1), device=device)
    target = torch.empty_like(source)
    taken = _shortest(lambda: target.copy_(source), device)
    return 2.0 * source.numel() * 4 / taken


def _computed(dtype: torch.dtype, device: torch.device) -> float:
    size = MATRIX[device.type]
    dtype = dtype if dtype.itemsize > 1 else torch.float32
    one = torch.ones(size, size, device=device, dtype=dtype)
    return 2.0 * size**3 / _shortest(lambda: one @ one, device)


def _shortest(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds that something takes when nothing disturbs it."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "cpu"


def _clock(device: torch.device) -> float | None:
    """The clock rate now, where it is known."""
    if device.type == "cuda":
        try:
            return float(torch.cuda.clock_rate(device))
        except Exception:  # it needs a package that need not be there
            return None
    rates = [
        float(line.partition(":")[2]) for line in _lines("/proc/cpuinfo") if line[:7] == "cpu MHz"
    ]
    return statistics.median(rates) if rates else None


def _cache(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8").splitlines()
    except OSError:
        return []
