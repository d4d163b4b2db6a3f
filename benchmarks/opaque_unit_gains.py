"""A Function that cannot be traced, inside one node: what fusing the rest around it gains.

A kernel of Liger-Kernel's (RMS norm, or the product of SiLU) stands between elementwise ops. As
written, each op is a node and a kernel of its own; combined, the program is one node, in which the
Function runs as it is and the ops around it are fused. The claim: one node, the same gradients, and
less time than as written. On a CPU, a Function on NumPy takes the place of the kernels.

Run it with `python -m benchmarks.opaque_unit_gains`; `--small` for a size that a CPU runs at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pullback as pb
from benchmarks.llama_step import now


class NumPyTanh(torch.autograd.Function):
    """A Function that no trace can look into."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Tanh, by NumPy."""
        import numpy

        y = torch.from_numpy(numpy.tanh(x.numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        """Its gradient, by NumPy."""
        (y,) = ctx.saved_tensors
        return torch.from_numpy(cotangent.numpy() * (1 - y.numpy() ** 2))


def numpy_between(x: Tensor, y: Tensor) -> Tensor:
    """Elementwise ops around a Function on NumPy."""
    return F.gelu(NumPyTanh.apply(torch.sin(x) * y + x)) * y


def norm_between(x: Tensor, weight: Tensor) -> Tensor:
    """Elementwise ops around Liger's RMS norm: a residual before, a gate after."""
    normed = import_module("liger_kernel.ops").LigerRMSNormFunction.apply(
        x + F.gelu(x), weight, 1e-6
    )
    return torch.sigmoid(normed) * normed.sin() * x


def product_between(x: Tensor, y: Tensor) -> Tensor:
    """Elementwise ops around Liger's product of SiLU."""
    product = import_module("liger_kernel.ops").LigerSiLUMulFunction.apply
    return product(x * 0.5 + y, y.tanh() * 2).sin() * x


def step(run: Callable[..., Any], args: tuple[Tensor, ...]) -> list[Tensor]:
    """Forward and backward."""
    made = run(*args)
    return [made.detach(), *torch.autograd.grad(made, args, torch.ones_like(made))]


def measure(program: Callable[..., Any], args: tuple[Tensor, ...], rounds: int) -> dict[str, Any]:
    """Milliseconds as written and combined, interleaved; and how far apart the results are."""
    device = args[0].device.type
    combined = pb.combine(program, *args)
    expected, got = step(program, args), step(combined, args)
    far = [float((a - b).norm() / b.norm()) for a, b in zip(got, expected, strict=True)]
    runs = {"as written": program, "combined": combined}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = now(device)
            step(run, args)
            times[name].append((now(device) - start) * 1e3)
    print(combined.explain())
    medians = {name: round(statistics.median(each), 3) for name, each in times.items()}
    node = type(combined(*args).grad_fn).__name__
    return {"ms": medians, "apart": far, "node": node}


def main() -> None:
    """Measure, and say what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device, on_gpu = args.device, args.device == "cuda"
    rows, width = (64, 128) if args.small else (32768, 4096) if on_gpu else (1024, 1024)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    torch.manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype).requires_grad_()

    cases: dict[Callable[..., Any], tuple[Tensor, ...]] = {}
    if on_gpu:
        cases[norm_between] = (drawn(rows, width), drawn(width))
        cases[product_between] = (drawn(rows, width), drawn(rows, width))
    else:
        cases[numpy_between] = (drawn(rows, width), drawn(rows, width))
    found = {"device": torch.cuda.get_device_name() if on_gpu else "cpu", "rows": rows}
    for program, given in cases.items():
        try:
            found[program.__name__] = measure(program, given, args.rounds)
            print(program.__name__, found[program.__name__], flush=True)
        except ImportError as error:
            print(f"{program.__name__}: left out ({error})")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
