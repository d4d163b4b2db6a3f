"""A linear layer and a cross-entropy without all logits at once: time and peak memory.

32,768 rows of 4,096 features, 32,768 classes, bfloat16, forward and backward. The claim:
`pb.chunked` takes at most 1 GiB beyond its arguments, gradients included, and no more time than
`torch.compile`. Liger's fused head stands beside it where Liger-Kernel is installed. Gradients are
compared with those of float32 arithmetic before anything is timed.

Run it with `python -m benchmarks.chunked_saves_memory` on a machine with a GPU; `--small` is a size
that a CPU runs in seconds, without peaks.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pullback as pb
from benchmarks.llama_step import IGNORED, liger_parts, loss_head, now

NAMES = ("eager", "compile", "liger", "chunked")


def make_run(name: str, chunks: int | str) -> Callable[..., Any]:
    """What one candidate calls."""
    if name == "eager":
        return loss_head
    if name == "compile":
        return torch.compile(loss_head)
    if name == "liger":
        return liger_parts().loss
    return pb.chunked(loss_head, over=("x", "labels"), chunks=chunks)


def passed(run: Callable[..., Any], args: tuple[Tensor, ...]) -> list[Tensor]:
    """Forward and backward: the loss and the gradients, with a cotangent of 2."""
    loss = run(*args)
    two = torch.full_like(loss, 2)
    return [loss.detach(), *torch.autograd.grad(loss, args[:2], two)]


def exact(x: Tensor, weight: Tensor, labels: Tensor) -> list[Tensor]:
    """The loss and gradients in float32 throughout, some rows at a time."""
    counted = int((labels != IGNORED).sum())
    wide = weight.float().detach().requires_grad_()
    total, grads = torch.zeros((), device=x.device), []
    for rows, some in zip(x.detach().split(2048), labels.split(2048), strict=True):
        part = rows.float().requires_grad_()
        summed = torch.nn.functional.cross_entropy(
            part @ wide.T, some, ignore_index=IGNORED, reduction="sum"
        )
        (summed * (2 / counted)).backward()
        total += summed.detach() / counted
        grads.append(part.grad)
    return [total, torch.cat(grads), wide.grad]  # type: ignore[arg-type, list-item]


def error_of(got: Tensor, known: Tensor) -> float:
    """How far from the truth, as a part of its size."""
    return float((got.float() - known).norm() / known.norm())


def peak_of(run: Callable[..., Any], args: tuple[Tensor, ...]) -> float:
    """GiB beyond the arguments."""
    if not args[0].is_cuda:
        return float("nan")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    passed(run, args)
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def main() -> None:
    """Measure, and say what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--chunks", type=int, default=0, help="by default chosen")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", help="rows, features, classes: 32768,4096,32768")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = args.device
    is_small = args.small or device == "cpu"
    rows, width, classes = (512, 64, 2048) if is_small else (32768, 4096, 32768)
    if args.sizes:
        rows, width, classes = map(int, args.sizes.split(","))
    torch.manual_seed(0)
    dtype = torch.bfloat16
    x = torch.randn(rows, width, device=device, dtype=dtype).requires_grad_()
    weight = (torch.randn(classes, width, device=device) * 0.02).to(dtype).requires_grad_()
    labels = torch.randint(classes, (rows,), device=device)
    labels[::10] = IGNORED
    given = (x, weight, labels)
    known = exact(*given)
    runs, found = {}, {}
    for name in args.names.split(","):
        try:
            run = make_run(name, args.chunks or "auto")
            start = now(device)
            made = passed(run, given)
            first = now(device) - start
        except ImportError as error:
            print(f"{name}: left out ({error})")
            continue
        errors = [error_of(a, b) for a, b in zip(made, known, strict=True)]
        del made
        passed(run, given)
        found[name] = {"first_seconds": round(first, 2), "errors": errors}
        found[name]["peak_gib"] = round(peak_of(run, given), 3)
        runs[name] = run
        print(name, found[name], flush=True)
        if hasattr(run, "explain"):
            print(run.explain(), flush=True)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.rounds):
        for name, run in runs.items():
            start = now(device)
            passed(run, given)
            times[name].append((now(device) - start) * 1e3)
    print("| candidate | ms | peak GiB | error of gradients (x, weight) |\n|---|---|---|---|")
    for name, facts in found.items():
        facts["ms"] = round(statistics.median(times[name]), 2)
        errors = ", ".join(f"{one:.1e}" for one in facts["errors"][1:])
        print(f"| {name} | {facts['ms']} | {facts['peak_gib']} | {errors} |")
    if args.json:
        sizes = {"rows": rows, "features": width, "classes": classes, "dtype": "bfloat16"}
        where = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        args.json.write_text(json.dumps({"device": where, **sizes, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
