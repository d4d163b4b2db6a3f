"""The speed-up of a verdict holds what a careful measurement by hand gives.

    python -m benchmarks.judged_speedup_is_true            # on this processor
    python -m benchmarks.judged_speedup_is_true --gpu

By hand: reference and candidate in turn, each call on numbers of its own, with caches that were
filled with something else, and medians over many rounds. On a GPU, with events.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

import pullback as pb


def written_out(x: Tensor, w: Tensor) -> Tensor:
    """RMS norm, operation by operation."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def one_kernel(x: Tensor, w: Tensor) -> Tensor:
    """RMS norm by PyTorch's own kernel."""
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-6)


def by_hand(rounds: int, x: Tensor, w: Tensor) -> tuple[float, float]:
    """The speed-up of forward, and of forward and backward."""
    flushed = torch.zeros(1 << 26 if x.is_cuda else 1 << 23, dtype=torch.int32, device=x.device)
    taken: dict[tuple[str, bool], list[float]] = {}
    calls = {"written out": written_out, "one kernel": one_kernel}
    for number in range(rounds + 3):
        for name, call in calls.items():
            for both in (False, True):
                args = [torch.randn_like(t).requires_grad_() for t in (x, w)]
                cotangent = torch.randn_like(x)
                flushed.add_(1)
                seconds = _timed(call, args, cotangent if both else None)
                if number >= 3:
                    taken.setdefault((name, both), []).append(seconds)
    medians = {key: statistics.median(times) for key, times in taken.items()}
    forward, both = (
        medians["written out", mode] / medians["one kernel", mode] for mode in (False, True)
    )
    return forward, both


def _timed(call: Callable[..., Tensor], args: list[Tensor], cotangent: Tensor | None) -> float:
    if args[0].is_cuda:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
    start = time.perf_counter()
    out = call(*args)
    if cotangent is not None:
        torch.autograd.grad(out, args, cotangent)
    if not args[0].is_cuda:
        return time.perf_counter() - start
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def main(argv: list[str] | None = None) -> int:
    """Print both, and whether the interval holds what was measured by hand."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args(argv)
    device, sizes = ("cuda", (8192, 4096)) if options.gpu else ("cpu", (512, 1024))
    x, w = torch.randn(sizes, device=device), torch.randn(sizes[-1], device=device)
    verdict = pb.judge(one_kernel, written_out, (x, w), compiled=False, check=False)
    hand = dict(zip(("forward", "both"), by_hand(options.rounds, x, w), strict=True))
    print(f"{'mode':<10}{'pb.judge':>28}{'by hand':>10}  held")
    for mode, value in hand.items():
        ratio = verdict.speedups[mode]["reference"]
        held = ratio.low <= value <= ratio.high
        print(f"{mode:<10}{ratio!s:>28}{value:>10.2f}  {'yes' if held else 'no'}")
    print(f"right {verdict.right}, honest {verdict.honest}: {', '.join(verdict.names())}")
    print(f"share of the limit: {verdict.limits['share_of_limit']}")
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main())
