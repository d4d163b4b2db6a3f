"""A call of `pullback.Function` costs no more than one of `torch.autograd.Function`.

Chains of 1, 10 and 40 tiny Functions (sine of 4 elements) are run forward, and forward and
backward, against the built-in op, `torch.autograd.Function` in both styles, and
`torch.library.custom_op` with `register_autograd`. Every ratio is taken within interleaved rounds.
The claims:

    ctx style            <= 1.00 of torch.autograd.Function's time
    setup_context style  <= 0.50 of torch.autograd.Function's cost per node
    saved memory         the same bytes

Run it with `make bench` or `python -m benchmarks.function_call_is_cheap`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import pullback as pb
from benchmarks.timing import Timing, interleave

LENGTHS = (1, 10, 40)


def ctx_style(base: type) -> Any:
    """Sine as a Function in one piece."""

    class Sine(base):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return cotangent * x.cos()

    return Sine


def setup_style(base: type) -> Any:
    """Sine as a Function with `setup_context`."""

    class Sine(base):  # type: ignore[misc]
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

    return Sine


def custom_op() -> Callable[[Tensor], Tensor]:
    """Sine as a `torch.library` op."""

    @torch.library.custom_op("pullback_bench::sine", mutates_args=())
    def sine(x: Tensor) -> Tensor:
        return x.sin()

    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cotangent * x.cos()

    sine.register_autograd(backward, setup_context=setup_context)
    return sine


def candidates() -> dict[str, Callable[[Tensor], Tensor]]:
    """Every way to write the same function."""
    torch_function = torch.autograd.Function
    return {
        "built-in op": torch.sin,
        "torch.autograd.Function": ctx_style(torch_function).apply,
        "pullback.Function": ctx_style(pb.Function).apply,
        "torch.autograd.Function, setup_context": setup_style(torch_function).apply,
        "pullback.Function, setup_context": setup_style(pb.Function).apply,
        "torch.library.custom_op": custom_op(),
    }


def chain(function: Callable[[Tensor], Tensor], length: int, *, backward: bool) -> Any:
    """A call that runs `length` functions one after the other, and backward if asked."""
    x = torch.linspace(0.1, 1.0, 4, requires_grad=True)
    cotangent = torch.ones(4)

    def run() -> Any:
        y = x
        for _ in range(length):
            y = function(y)
        return torch.autograd.grad(y, x, cotangent) if backward else y

    return run


def saved_bytes(function: Callable[[Tensor], Tensor]) -> int:
    """What one call of `function` keeps for backward."""
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    x = torch.linspace(0.1, 1.0, 1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(x)
    return sum(kept)


def measure(rounds: int) -> dict[tuple[int, bool], dict[str, Timing]]:
    """Every candidate for every length, forward alone and with backward."""
    functions = candidates()
    return {
        (length, backward): interleave(
            {name: chain(f, length, backward=backward) for name, f in functions.items()},
            rounds=rounds,
        )
        for length in LENGTHS
        for backward in (False, True)
    }


def per_node(measured: Any, name: str, backward: bool) -> Timing:
    """The cost of one more node: what 40 of them take over what 10 take, per node."""
    long, short = (measured[length, backward][name].rounds for length in (40, 10))
    return Timing(tuple((a - b) / 30 for a, b in zip(long, short, strict=True)))


def main() -> None:
    """Print the table and the three claims with their measured values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=101)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    measured = measure(rounds)
    console = Console()
    table = Table(title=f"µs per call, median of {rounds} interleaved rounds (CPU time, 1 thread)")
    table.add_column("")
    columns = [(length, backward) for backward in (False, True) for length in LENGTHS]
    for length, backward in columns:
        table.add_column(f"{'fwd+bwd' if backward else 'fwd'} x{length}", justify="right")
    table.add_column("fwd+bwd per node", justify="right")
    for name in candidates_names(measured):
        cells = [f"{measured[column][name].median * 1e6:.1f}" for column in columns]
        node = per_node(measured, name, True)
        table.add_row(name, *cells, f"{node.median * 1e6:.1f}")
    console.print(table)
    console.print("\nThe table of the README, ratios to torch.autograd.Function (0.50 is half):\n")
    for line in markdown(measured):
        console.print(line, highlight=False, soft_wrap=True)
    functions = candidates()
    kept = {name: saved_bytes(functions[name]) for name in functions if "Function" in name}
    console.print("\nsaved bytes for 1000 floats:", kept, highlight=False)


def markdown(measured: Any) -> list[str]:
    """The ratios to `torch.autograd.Function` in the same style, with quartiles."""
    columns = [(length, backward) for backward in (False, True) for length in LENGTHS]
    heads = [f"{'fwd+bwd' if b else 'fwd'}, {n} node{'s' * (n > 1)}" for n, b in columns]
    lines = ["| style | " + " | ".join(heads) + " | fwd+bwd, per node |"]
    lines += ["|---" * (len(columns) + 2) + "|"]
    for style in ("", ", setup_context"):
        mine, other = f"pullback.Function{style}", f"torch.autograd.Function{style}"
        cells = []
        for column in columns:
            pair = measured[column][mine], measured[column][other]
            low, high = pair[0].spread(pair[1])
            cells.append(f"{pair[0].ratio(pair[1]):.2f} ({low:.2f}-{high:.2f})")
        node = per_node(measured, mine, True).ratio(per_node(measured, other, True))
        name = "`forward(ctx, ...)`" if not style else "`setup_context`"
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {node:.2f} |")
    return lines


def candidates_names(measured: Any) -> list[str]:
    """The rows of the table."""
    return list(next(iter(measured.values())))


if __name__ == "__main__":
    main()
