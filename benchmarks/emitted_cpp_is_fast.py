"""An emitted C++ Function is at least twice as fast as the Python Function that it came from.

A chain of ten tiny Functions (4 elements), forward and backward, in three ways: as the Python class
was written, and as the C++ op that `pb.emit` made of it and `pb.build` compiled; and as PyTorch's
own ops, for comparison. Every ratio is taken within interleaved rounds. The claim:

    emitted C++  <= 0.50 of the Python Function's time, for a class of several ops

Run it with `make bench` or `python -m benchmarks.emitted_cpp_is_fast`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.autograd import Function

import pullback as pb
from benchmarks.timing import interleave
from pullback.emit.build import has_compiler
from pullback.emit.cpp import emit_together
from pullback.emit.subject import subject_of

LENGTH = 10


class Swish(Function):
    """x * sigmoid(x), by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return cotangent * (gate + x * gate * (1 - gate))


class Sine(Function):
    """sin(x), by hand, in the `setup_context` style."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cotangent * x.cos()


OWN = {Swish: torch.nn.functional.silu, Sine: torch.sin}
"""The classes, each with PyTorch's own op for the same."""


def chain(step: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], object]:
    """Ten times `step`, forward and backward."""
    ones = torch.ones_like(x)

    def run() -> object:
        y = x
        for _ in range(LENGTH):
            y = step(y)
        return torch.autograd.grad(y, x, ones)

    return run


def main() -> None:
    """Print the table, and whether the claim holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41)
    rounds = parser.parse_args().rounds
    console = Console()
    if not has_compiler():
        console.print("no C++ compiler: nothing to measure")
        return
    torch.set_num_threads(1)
    x = torch.randn(4, requires_grad=True)
    table = Table(title=f"chain of {LENGTH}, forward and backward, 4 elements")
    for name in ("class", "way", "µs", "of the Python class"):
        table.add_column(name, justify="left" if name in ("class", "way") else "right")
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "classes.cpp"
        file.write_text(emit_together([subject_of(cls, (x,)) for cls in OWN]), encoding="utf-8")
        ops = pb.build(file, cache=folder)
        for cls, own in OWN.items():
            emitted = getattr(ops, cls.__name__.lower()).default
            ways = {"Python": cls.apply, "emitted C++": emitted, "PyTorch's own": own}
            taken = interleave({k: chain(step, x) for k, step in ways.items()}, rounds=rounds)
            for way, timing in taken.items():
                ratio = timing.ratio(taken["Python"])
                table.add_row(cls.__name__, way, f"{timing.median * 1e6:.1f}", f"{ratio:.2f}")
            ratios[cls.__name__] = taken["emitted C++"].ratio(taken["Python"])
    console.print(table)
    holds = all(ratio <= 0.5 for ratio in ratios.values())
    console.print(f"at least twice as fast: {'yes' if holds else 'NO'}")


if __name__ == "__main__":
    main()
