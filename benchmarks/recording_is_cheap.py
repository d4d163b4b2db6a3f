"""A recorded call costs a few microseconds more, and one that is not recorded nothing.

What `pytest --pullback`, `pullback record` and `pb.recording` add to a call of a Function, and of a
custom op, of four elements, once the few calls of it that are kept have been seen.

Run it with `make bench` or `python -m benchmarks.recording_is_cheap`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import pullback as pb
from benchmarks.function_call_is_cheap import ctx_style, custom_op
from benchmarks.timing import interleave


def recorded(call: Callable[[Tensor], Any], x: Tensor) -> Callable[[], Any]:
    """The call inside a recording that is entered once for a hundred calls."""

    def run() -> None:
        with pb.recording():
            for _ in range(100):
                call(x)

    return run


def plain(call: Callable[[Tensor], Any], x: Tensor) -> Callable[[], Any]:
    """A hundred calls as they are."""

    def run() -> None:
        for _ in range(100):
            call(x)

    return run


def main() -> None:
    """Print microseconds per call, with a recording and without."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    x = torch.randn(4, requires_grad=True)
    functions = {
        "torch.autograd.Function": ctx_style(torch.autograd.Function).apply,
        "pb.Function": ctx_style(pb.Function).apply,
        "torch.library.custom_op": custom_op(),
    }
    print(f"{'microseconds per call':<26}{'plain':>8}{'recorded':>10}")
    for name, call in functions.items():
        times = interleave(
            {"plain": plain(call, x), "recorded": recorded(call, x)}, rounds=rounds, seconds=0.02
        )
        microseconds = [times[key].median * 1e4 for key in ("plain", "recorded")]
        print(f"{name:<26}{microseconds[0]:>8.1f}{microseconds[1]:>10.1f}")


if __name__ == "__main__":
    main()
