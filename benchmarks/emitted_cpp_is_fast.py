"""An emitted C++ Function is at least twice as fast as the Python that it came from.

A chain of ten (4 elements), forward and backward: in Python as it was written, as the C++ op that
`emit` made of it and `build` compiled, and as PyTorch's own ops. Every ratio is taken within
interleaved rounds. The claims, of the time that Python takes:

    a class in the `setup_context` style     emitted C++ <= 0.50
    a program of two Functions               emitted C++ <= 0.50
    a class in the `ctx` style, several ops  emitted C++ <= 0.70: autograd's own work and the ops
                                             themselves take the rest, in any language

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
from examples import nested
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


CASES = {
    "Sine": (Sine, torch.sin, 0.5),
    "Nested": (nested.nested, nested.plain, 0.5),
    "Swish": (Swish, torch.nn.functional.silu, 0.7),
}
"""What is emitted, the same in PyTorch's own ops, and the claim."""


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
    for name in ("what", "way", "µs", "of Python"):
        table.add_column(name, justify="left" if name in ("what", "way") else "right")
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "classes.cpp"
        subjects = [subject_of(thing, (x,)) for thing, _, _ in CASES.values()]
        file.write_text(emit_together(subjects), encoding="utf-8")
        ops = pb.build(file, cache=folder)
        for name, (thing, own, claim) in CASES.items():
            written = thing.apply if isinstance(thing, type) else thing
            emitted = getattr(ops, name.lower()).default
            ways = {"Python": written, "emitted C++": emitted, "PyTorch's own": own}
            taken = interleave({k: chain(step, x) for k, step in ways.items()}, rounds=rounds)
            for way, timing in taken.items():
                ratio = timing.ratio(taken["Python"])
                table.add_row(name, way, f"{timing.median * 1e6:.1f}", f"{ratio:.2f}")
            if taken["emitted C++"].ratio(taken["Python"]) > claim:
                failed.append(name)
    console.print(table)
    console.print(f"claims: {'not met for ' + ', '.join(failed) if failed else 'met'}")


if __name__ == "__main__":
    main()
