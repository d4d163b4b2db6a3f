"""What a composition costs: nested, combined, compiled, by hand, and as the planner chooses.

Each pipeline is run forward and backward at several sizes, all candidates in interleaved rounds of
one process; a number is the median over rounds of the time of the program as written, as nested
Functions, over the candidate's: 2.0 means twice as fast as nested. The claims, on a CPU:

    every row       the plan's choice takes <= 1.05 of the best of nested, combined, torch.compile
    <= 1k elements  the plan's choice is >= 3 times as fast as torch.compile, >= 2 as nested
    >= 1M elements  the plan's choice is >= 1.00 times as fast as torch.compile, >= 1.5 as nested

(the last two as geometric means over the rows). On a GPU the choice is also compared with plain
ops, and a row says how near the choice comes to the limit set by the bytes moved: inputs read,
outputs written, and the same for backward, at the speed at which the device copies. `replayed` is
the choice, recorded as a CUDA graph by `torch.cuda.make_graphed_callables`.

With `--first-call`, the seconds of the first call in new processes instead, with empty and with
full caches: that of a combined function takes no longer than that of `torch.compile`.

Run it with `python -m benchmarks.composed_is_fast`; `--device cuda`, `--sizes`, `--pipelines`,
`--threads`, `--dtype` and `--json` choose what is run and where the numbers go. A row in the file
is replaced when it is measured anew; with `--missing` only those are that are not there.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import pullback as pb
from benchmarks.pipelines import PIPELINES, make_inputs
from benchmarks.timing import interleave

SIZES = (4, 1_000, 64_000, 1_000_000, 10_000_000)
NAMES = tuple(name for name in PIPELINES if name not in ("swiglu_core", "layernorm_gelu"))
LIMIT = 180  # seconds that torch.compile may take; unrolled loops take it many minutes
TITLES = {
    "sqsin": "square(x) sin(y), 3 units",
    "chain": "sin exp tanh mul, 4",
    "norm_block": "layer norm gelu scale add, 4",
    "mlp": "linear gelu linear, 3",
    "swiglu": "swiglu with its 3 linears, 5",
    "swiglu_core": "silu(gate) up, 2",
    "cross_entropy": "softmax cross-entropy, 2",
    "rmsnorm_rope": "RMS norm and rope, 2",
    "attention": "attention, 4",
    "runge_kutta": "Runge-Kutta step, 11",
    "chain12": "the chain three times, 12",
    "leapfrog": "ten leapfrog steps, 50",
}
CANDIDATES = ("nested", "plain", "by hand", "compile", "combined", "plan", "replayed")

PRODUCTS = ("mlp", "swiglu", "attention")
RIVALS = {
    "cpu": ("nested", "combined", "compile"),
    "cuda": ("nested", "plain", "combined", "compile"),
}
"""What the plan's choice is never slower than, beyond noise."""


@dataclass(frozen=True, slots=True)
class Row:
    """One pipeline at one size: microseconds, speed-ups over nested, and the share of the limit."""

    pipeline: str
    size: int
    threads: int
    device: str
    dtype: str
    nested: float
    speedups: dict[str, float]
    spreads: dict[str, tuple[float, float]]
    chosen: str
    limit: float | None = None

    @property
    def key(self) -> tuple[str, int, int, str, str]:
        """What is measured."""
        return self.pipeline, self.size, self.threads, self.device, self.dtype


def measure(
    name: str,
    size: int,
    *,
    device: str,
    dtype: torch.dtype,
    budget: float,
    rounds: int,
    limit: int = LIMIT,
) -> Row:
    """Every candidate of one pipeline at one size."""
    pipeline, args = PIPELINES[name], make_inputs(name, size, dtype, device)
    runs: dict[str, Callable[..., Any]] = {"nested": pipeline.nested, "plain": pipeline.plain}
    if pipeline.by_hand is not None:
        runs["by hand"] = pipeline.by_hand
    torch.compiler.reset()
    compiled = torch.compile(pipeline.nested, fullgraph=True)
    if limit and _runs_within(compiled, args, limit):
        runs["compile"] = compiled
    runs["combined"] = pb.combine(pipeline.nested, *args, backend="inductor").apply
    plan = pb.plan(pipeline.nested, *args, budget=budget)
    runs["plan"] = plan.best
    if device == "cuda":
        runs["replayed"] = torch.cuda.make_graphed_callables(plan.best, args)
    calls = {key: _pass(run, args) for key, run in runs.items()}
    clock = time.perf_counter if torch.get_num_threads() > 1 else time.thread_time
    clock = _device_time if device == "cuda" else clock
    timings = interleave(calls, rounds=rounds, seconds=0.01, clock=clock)
    nested = timings["nested"]
    return Row(
        pipeline=name,
        size=size,
        threads=torch.get_num_threads(),
        device=device,
        dtype=str(dtype).removeprefix("torch."),
        nested=nested.median * 1e6,
        speedups={key: 1 / one.ratio(nested) for key, one in timings.items()},
        spreads={key: one.spread(nested) for key, one in timings.items()},
        chosen=_chosen(plan),
        limit=_limit(args, pipeline.plain(*args)) if device == "cuda" else None,
    )


def _runs_within(run: Callable[..., Any], args: tuple[Any, ...], seconds: int) -> bool:
    """Run forward and backward once; whether that took no longer."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        _pass(run, args)()
    except Exception:  # torch wraps what is raised while it compiles
        return False
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return True


def _chosen(plan: Any) -> str:
    """What the plan chose, in words."""
    return repr(plan).split(": ", 1)[1].rstrip(">")


def _device_time() -> float:
    """The time when all that was asked of the GPU so far is done."""
    torch.cuda.synchronize()
    return time.perf_counter()


def _pass(run: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], None]:
    """Forward and backward once, with a cotangent like those of a training step."""
    leaves = [x for x in args if x.requires_grad]
    made = run(*args)
    outputs = (made,) if isinstance(made, Tensor) else made
    cotangents = [torch.ones_like(y) for y in outputs]

    def call() -> None:
        made = run(*args)
        outputs = (made,) if isinstance(made, Tensor) else made
        torch.autograd.grad(outputs, leaves, cotangents)

    return call


def _limit(args: tuple[Any, ...], made: Any) -> float:
    """Microseconds that moving the bytes takes: inputs twice, gradients once, outputs twice."""
    source, target = torch.empty(1 << 28, device="cuda"), torch.empty(1 << 28, device="cuda")
    copy = {"copy": lambda: target.copy_(source)}
    timing = interleave(copy, rounds=5, seconds=0.02, clock=_device_time)
    return moved(args, made) * timing["copy"].median / (2 * source.nbytes) * 1e6


def moved(args: tuple[Any, ...], made: Any) -> int:
    """The bytes that forward and backward read and write at least."""
    inputs = sum(x.nbytes for x in args)
    gradients = sum(x.nbytes for x in args if x.requires_grad)
    outputs = sum(y.nbytes for y in ((made,) if isinstance(made, Tensor) else made))
    return 2 * inputs + gradients + 2 * outputs


# ---- keeping ----


def kept_in(path: Path | None) -> list[Row]:
    """The rows in a file, one a line; none if there is no file."""
    if path is None or not path.exists():
        return []
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]


def keep(row: Row, path: Path) -> None:
    """Add a row to a file, in the place of the one that was measured before."""
    rows = {one.key: one for one in kept_in(path)} | {row.key: row}
    lines = [json.dumps(asdict(rows[key])) + "\n" for key in sorted(rows)]
    fresh = path.with_name(path.name + ".new")
    fresh.write_text("".join(lines))
    fresh.replace(path)


# ---- showing ----


def shown(rows: list[Row]) -> Table:
    """The rows as a table."""
    table = Table("pipeline", "elements", "threads", "nested us", *CANDIDATES[1:], "chosen")
    for row in rows:
        cells = [
            f"{row.speedups[key]:.2f}" if key in row.speedups else "" for key in CANDIDATES[1:]
        ]
        first = (row.pipeline, str(row.size), str(row.threads), f"{row.nested:.0f}")
        table.add_row(*first, *cells, row.chosen)
    return table


def claims(rows: list[Row]) -> list[tuple[str, float, bool]]:
    """Each claim: what it says, what was measured, and whether it holds."""
    found = []
    for device, rivals in RIVALS.items():
        over = [_over(row, rivals) for row in rows if row.device == device]
        if over:
            text = f"slowest plan over the best of {', '.join(rivals)} (<= 1.05)"
            found.append((text, max(over), max(over) <= 1.05))
    parts = (
        ("<= 1k elements", [r for r in rows if r.size <= 1000], 3.0, 2.0),
        (">= 1M elements", [r for r in rows if r.size >= 1_000_000], 1.0, 1.5),
    )
    for text, chosen, over_compile, over_nested in parts:
        compiled = [r for r in chosen if "compile" in r.speedups]
        if compiled:
            value = _mean(r.speedups["plan"] / r.speedups["compile"] for r in compiled)
            name = f"{text}: plan over torch.compile (>= {over_compile})"
            found.append((name, value, value >= over_compile))
        if chosen:
            value = _mean(r.speedups["plan"] for r in chosen)
            name = f"{text}: plan over nested (>= {over_nested})"
            found.append((name, value, value >= over_nested))
    return found


def _over(row: Row, rivals: tuple[str, ...]) -> float:
    """The plan's time over that of the best of some candidates."""
    return max(row.speedups.get(key, 0) for key in rivals) / row.speedups["plan"]


def markdown(rows: list[Row]) -> str:
    """The rows as a table for the docs; the plan's time as a multiple of the limit, on a GPU."""
    heads = ("pipeline", "elements", "dtype", "threads", "nested", *CANDIDATES[1:])
    heads += ("times limit", "chosen")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [f"{row.speedups[k]:.2f}" if k in row.speedups else "-" for k in CANDIDATES[1:]]
        first = (row.pipeline, f"{row.size:,}", row.dtype, str(row.threads))
        first += (f"{row.nested:.0f} us",)
        limit = "-"
        if row.limit and row.size >= 1_000_000:  # smaller ones stay in a cache
            limit = f"{row.nested / row.speedups['plan'] / row.limit:.1f}"
        lines.append(f"| {' | '.join((*first, *cells, limit, row.chosen))} |")
    lines += [
        f"\n{'holds' if holds else 'FAILS'}: {text}: {v:.2f}" for text, v, holds in claims(rows)
    ]
    return "\n".join(lines)


def brief(rows: list[Row]) -> str:
    """For each number of threads, or a GPU, a table of a line per pipeline; and the claims."""
    lines: list[str] = []
    for threads in sorted({row.threads for row in rows if row.device == "cpu"}):
        chosen = [row for row in rows if row.device == "cpu" and row.threads == threads]
        lines += ["", *_brief(chosen, f"units, on {threads} thread{'s' * (threads > 1)}", _on_cpu)]
    on_gpu = [row for row in rows if row.device == "cuda"]
    for head, cell in _GPU_TABLES.items() if on_gpu else ():
        lines += ["", *_brief(on_gpu, head, cell)]
    lines += [f"\n{'holds' if ok else 'FAILS'}: {text}: {v:.2f}" for text, v, ok in claims(rows)]
    return "\n".join(lines)


def _brief(rows: list[Row], head: str, cell: Callable[[Row], str]) -> list[str]:
    found = {(row.pipeline, row.dtype, row.size): cell(row) for row in rows}
    kinds = sorted({(row.dtype, row.size) for row in rows}, key=lambda k: (k[0] != "float32", k[1]))
    is_plain = len({dtype for dtype, _ in kinds}) == 1
    heads = [head, *(f"{size:,}" if is_plain else f"{size:,} {dtype}" for dtype, size in kinds)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in (name for name in TITLES if any(row.pipeline == name for row in rows)):
        cells = [found.get((name, *kind), "-") for kind in kinds]
        lines.append(f"| {' | '.join((TITLES[name], *cells))} |")
    return lines


def _on_cpu(row: Row) -> str:
    """The plan's speed-up over nested, and in brackets that of torch.compile."""
    compiled = f"{row.speedups['compile']:.1f}" if "compile" in row.speedups else "-"
    return f"{row.speedups['plan']:.1f} ({compiled})"


def _on_gpu(row: Row) -> str:
    """The same, with plain ops before torch.compile."""
    keys = ("plain", "compile")
    others = ", ".join(f"{row.speedups[k]:.1f}" if k in row.speedups else "-" for k in keys)
    return f"{row.speedups['plan']:.1f} ({others})"


def _replayed(row: Row) -> str:
    """The speed-up of the choice that was recorded."""
    return f"{row.speedups['replayed']:.1f}" if "replayed" in row.speedups else "-"


def _share(row: Row) -> str:
    """The share of the speed of a copy, where it says something: products of matrices compute."""
    if not row.limit or row.size < 1_000_000 or row.pipeline in PRODUCTS:
        return "-"
    return f"{row.limit * row.speedups['plan'] / row.nested:.0%}"


_GPU_TABLES = {"units": _on_gpu, "recorded": _replayed, "share of a copy's speed": _share}


# ---- the first call ----

_FIRST = """
import time, torch, pullback as pb
from benchmarks.pipelines import PIPELINES, make_inputs
torch.set_num_threads(1)
program = PIPELINES[{name!r}].nested
args = make_inputs({name!r}, 1000, torch.float32, {device!r})
start = time.perf_counter()
call = {run}
outputs = call(*args)
outputs = outputs if isinstance(outputs, tuple) else (outputs,)
sum(y.sum() for y in outputs).backward()
print(time.perf_counter() - start)
"""
_RUNS = {
    "torch.compile": "torch.compile(program)",
    "combined": "pb.combine(program, *args).apply",
    "unverified": "pb.combine(program, *args, verify=False).apply",
}


def first_calls(names: Iterable[str], device: str) -> Table:
    """Seconds of the first call, forward and backward, in new processes: caches empty, then full.

    `combined` is `pb.combine` as it comes, which compares what it compiled with the program;
    `unverified` leaves that out.
    """
    heads = [f"{key} {state}" for state in ("cold", "warm") for key in _RUNS]
    table = Table("pipeline", *heads, "ratio cold", "ratio warm")
    ratios: dict[str, list[float]] = {"cold": [], "warm": []}
    for name in names:
        seconds = _first_seconds(name, device)
        for state, row in ratios.items():
            row.append(seconds["combined", state] / seconds["torch.compile", state])
        cells = [f"{seconds[key, state]:.1f}" for state in ratios for key in _RUNS]
        table.add_row(name, *cells, *(f"{row[-1]:.2f}" for row in ratios.values()))
    blank = [""] * len(heads)
    table.add_row("geometric mean", *blank, *(f"{_mean(row):.2f}" for row in ratios.values()))
    return table


def _first_seconds(name: str, device: str) -> dict[tuple[str, str], float]:
    """Seconds of each way, with empty caches and with those that the first process filled."""
    seconds = {}
    for key, run in _RUNS.items():
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            caches = {"TORCHINDUCTOR_CACHE_DIR": folder, "PULLBACK_CACHE_DIR": folder}
            for state in ("cold", "warm"):
                done = subprocess.run(
                    [sys.executable, "-c", _FIRST.format(name=name, run=run, device=device)],
                    env=os.environ | caches,
                    capture_output=True,
                    text=True,
                    check=True,
                )
                seconds[key, state] = float(done.stdout.split()[-1])
    return seconds


def _mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pipelines", nargs="*", default=list(NAMES), choices=list(PIPELINES))
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for each plan")
    parser.add_argument("--rounds", type=int, default=41, help="few, to see that it runs")
    parser.add_argument("--first-call", action="store_true", help="time first calls instead")
    parser.add_argument("--show", nargs="*", type=Path, help="print rows kept with --json")
    parser.add_argument("--brief", action="store_true", help="with --show: a line per pipeline")
    parser.add_argument("--json", type=Path, help="keep the rows in this file, one a line")
    parser.add_argument("--missing", action="store_true", help="only rows not kept there yet")
    parser.add_argument(
        "--compile-limit", type=int, default=LIMIT, help="seconds for torch.compile; 0: without it"
    )
    options = parser.parse_args()
    if options.rounds < 5:
        options.pipelines, options.sizes, options.threads = ["sqsin"], [4], [1]
        options.budget = 0.0
    warnings.filterwarnings("ignore", module="torch")
    logging.disable(logging.WARNING)
    if options.show:
        rows = [row for path in options.show for row in kept_in(path)]
        rows.sort(key=lambda row: (row.pipeline, row.dtype, row.size, row.threads))
        print(brief(rows) if options.brief else markdown(rows))
        return
    if options.first_call:
        Console(width=140).print(first_calls(options.pipelines, options.device))
        return
    rows = _measured(options)
    if not rows:
        print("no row was measured")
        return
    console = Console(width=140)
    console.print(shown(rows))
    for text, value, holds in claims(rows):
        console.print(f"{'holds' if holds else 'FAILS':5}  {value:6.2f}  {text}")


def _measured(options: argparse.Namespace) -> list[Row]:
    """Measure what the options ask for, and keep it as they say."""
    known = {row.key for row in kept_in(options.json)} if options.missing else set()
    rows = []
    for threads in options.threads if options.device == "cpu" else [torch.get_num_threads()]:
        torch.set_num_threads(threads)
        for name in options.pipelines:
            for size in options.sizes:
                if (name, size, threads, options.device, options.dtype) in known:
                    continue
                start = time.perf_counter()
                row = measure(
                    name,
                    size,
                    device=options.device,
                    dtype=getattr(torch, options.dtype),
                    budget=options.budget,
                    rounds=options.rounds if size <= 1_000_000 else min(options.rounds, 15),
                    limit=options.compile_limit,
                )
                rows.append(row)
                seconds = time.perf_counter() - start
                print(f"{name} {size} {threads}: {row.chosen} ({seconds:.0f} s)", flush=True)
                if options.json:
                    keep(row, options.json)
    return rows


if __name__ == "__main__":
    main()
