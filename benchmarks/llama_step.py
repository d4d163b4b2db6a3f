"""A training step of a Llama-like model: as written, with parts replaced, in blocks, compiled.

The model is plain PyTorch: 8 layers, 2,048 wide, 32 heads of which 8 have keys and values, 8,192 in
the middle, a vocabulary of 128,256, bfloat16. A step is forward, loss and backward; an optimizer
would add the same to all. The candidates:

    eager    as written
    liger    norm, rope, swiglu and loss head replaced by Liger-Kernel's, where that is installed
    parts    the same four replaced by `pb.combine`, and `pb.chunked` for the loss head
    blocks   each block as one node, `pb.combine(block, ...)`, and the same loss head
    compile  `torch.compile` of the whole

The claims: parts take no more time and memory than Liger's, blocks no more time than
`torch.compile`. All candidates share one model, run in interleaved rounds, and are compared in loss
and gradients before they are timed. `--losses 50` trains each for fifty steps in float32 from the
same start and compares the losses with those of eager.

Run it with `python -m benchmarks.llama_step` on a machine with a GPU; `--small` is the same at a
size that a CPU runs in seconds.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pullback as pb

IGNORED = -100  # labels that count for nothing


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of a model and of the batches that it is trained with."""

    layers: int = 8
    width: int = 2048
    heads: int = 32
    kv_heads: int = 8
    middle: int = 8192
    vocabulary: int = 128_256
    batches: tuple[tuple[int, int], ...] = ((8, 2048), (1, 1024))


SMALL = Size(2, 64, 4, 2, 128, 512, ((2, 32), (1, 16)))


# ---- the model, as one would write it ----


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Rows of unit mean square, scaled; in float32, as Llama has it."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * wide.to(x.dtype)


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, turned by their positions."""
    return q * cos + _half_turned(q) * sin, k * cos + _half_turned(k) * sin


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The product in the middle of the feed-forward layer."""
    return F.silu(gate) * up


def loss_head(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of the labels that are not ignored, in float32."""
    return F.cross_entropy(F.linear(x, weight).float(), labels, ignore_index=IGNORED)


@dataclass(frozen=True, slots=True)
class Parts:
    """The four functions of the model that are replaced; as written by default."""

    norm: Callable[..., Any] = rms_norm
    rope: Callable[..., Any] = rope
    swiglu: Callable[..., Any] = swiglu
    loss: Callable[..., Any] = loss_head


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and added to what came in."""

    def __init__(self, size: Size, parts: Parts) -> None:
        super().__init__()
        self.parts, self.head = parts, size.width // size.heads
        inner = size.kv_heads * self.head
        self.norm1 = nn.Parameter(torch.ones(size.width))
        self.norm2 = nn.Parameter(torch.ones(size.width))
        self.q = nn.Linear(size.width, size.width, bias=False)
        self.k = nn.Linear(size.width, inner, bias=False)
        self.v = nn.Linear(size.width, inner, bias=False)
        self.o = nn.Linear(size.width, size.width, bias=False)
        self.gate = nn.Linear(size.width, size.middle, bias=False)
        self.up = nn.Linear(size.width, size.middle, bias=False)
        self.down = nn.Linear(size.middle, size.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """One layer of the model."""
        normed = self.parts.norm(x, self.norm1)
        batch, length, _ = x.shape
        q, k, v = (
            each(normed).view(batch, length, -1, self.head).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        q, k = self.parts.rope(q, k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        normed = self.parts.norm(x, self.norm2)
        return x + self.down(self.parts.swiglu(self.gate(normed), self.up(normed)))


class Llama(nn.Module):
    """Embedding, blocks, norm and loss head."""

    def __init__(self, size: Size, parts: Parts) -> None:
        super().__init__()
        self.parts, self.size = parts, size
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size, parts) for _ in range(size.layers))
        self.norm = nn.Parameter(torch.ones(size.width))
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The loss of a batch."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        x = self.parts.norm(x, self.norm)
        return self.parts.loss(x.flatten(0, 1), self.head.weight, labels.flatten())


def make_model(size: Size, device: str, dtype: torch.dtype) -> Llama:
    """The model with drawn weights."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Llama(size, Parts()).to(dtype)
    for name, weight in model.named_parameters():
        if "norm" not in name:
            nn.init.normal_(weight, std=0.02)
    return model


Batch = tuple[Tensor, Tensor, Tensor, Tensor]


def make_batch(
    size: Size, shape: tuple[int, int], device: str, dtype: torch.dtype, seed: int = 1
) -> Batch:
    """Tokens, their labels with some ignored, and the cosines and sines of positions."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(size.vocabulary, (shape[0], shape[1] + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    labels[torch.rand(labels.shape, generator=generator) < 0.05] = IGNORED
    half = size.width // size.heads // 2
    rates = 1 / 500_000 ** (torch.arange(half) / half)
    angles = torch.outer(torch.arange(shape[1]).float(), rates).repeat(1, 2)
    cos, sin = (each.to(device, dtype) for each in (angles.cos(), angles.sin()))
    return tokens[:, :-1].contiguous().to(device), labels.to(device), cos, sin


# ---- the candidates ----


def with_parts(model: Llama, parts: Parts) -> Llama:
    """The same model, tensor by tensor, with other parts."""
    memo = {id(p): p for p in model.parameters()} | {id(model.parts): parts}
    return copy.deepcopy(model, memo)


def liger_parts() -> Parts:
    """The parts of Liger-Kernel, as its own models use them."""
    if not torch.cuda.is_available():
        raise ImportError("Liger-Kernel needs a GPU")
    ops = import_module("liger_kernel.ops")  # optional, and so imported by name

    def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Any:
        return ops.LigerRopeFunction.apply(q, k, cos[None], sin[None])

    def loss(x: Tensor, weight: Tensor, labels: Tensor) -> Any:
        made = ops.LigerFusedLinearCrossEntropyFunction.apply(
            x, weight, labels, None, None, IGNORED
        )
        return made[0] if isinstance(made, tuple) else made

    return Parts(
        lambda x, w: ops.LigerRMSNormFunction.apply(x, w, 1e-5, 0.0, "llama"),
        turned,
        ops.LigerSiLUMulFunction.apply,
        loss,
    )


def own_loss() -> Callable[..., Any]:
    """The loss head that never has all logits at once."""
    return pb.chunked(loss_head, over=("x", "labels"))


def own_parts(size: Size, batch: Batch) -> Parts:
    """The same functions, each combined; sizes are free, so small examples will do."""
    tokens, _, cos, sin = batch
    tokens, cos, sin = tokens[:1, :64], cos[:64], sin[:64]

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, device=cos.device, dtype=cos.dtype).requires_grad_()

    x, weight = drawn(*tokens.shape, size.width), drawn(size.width)
    gate, head = drawn(*tokens.shape, size.middle), size.width // size.heads
    q = drawn(*tokens.shape, size.heads, head).transpose(1, 2)
    k = drawn(*tokens.shape, size.kv_heads, head).transpose(1, 2)
    return Parts(
        pb.combine(rms_norm, x, weight),
        pb.combine(rope, q, k, cos, sin),
        pb.combine(swiglu, gate, gate),
        own_loss(),
    )


def with_blocks(model: Llama, batch: Batch) -> Llama:
    """The same model, each block of which is one node."""
    cos, sin = (each[:64] for each in batch[2:])
    x = torch.randn(1, len(cos), model.size.width, device=cos.device, dtype=cos.dtype)
    x.requires_grad_()
    combined = with_parts(model, Parts())
    combined.blocks = nn.ModuleList(pb.combine(each, x, cos, sin) for each in combined.blocks)
    combined.parts = Parts(norm=pb.combine(rms_norm, x, model.norm), loss=own_loss())
    return combined


Step = Callable[[], Tensor]


def candidates(
    model: Llama, batch: Batch, names: tuple[str, ...]
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Each candidate's name and its model; one that cannot be had is said and left out."""
    for name in names:
        try:
            yield name, _candidate(name, model, batch)
        except ImportError as error:
            print(f"{name}: left out ({error})", flush=True)


def _candidate(name: str, model: Llama, batch: Batch) -> Callable[..., Any]:
    if name == "eager":
        return model
    if name == "liger":
        return with_parts(model, liger_parts())
    if name == "parts":
        return with_parts(model, own_parts(model.size, batch))
    if name == "blocks":
        return with_blocks(model, batch)
    return torch.compile(with_parts(model, Parts()))


NAMES = ("eager", "liger", "parts", "blocks", "compile")


# ---- measuring ----


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate at one batch: milliseconds, peak memory, and how far from eager."""

    device: str
    dtype: str
    batch: tuple[int, int]
    name: str
    milliseconds: float
    peak_gib: float
    first_seconds: float
    loss: float
    gradient_error: float

    @property
    def key(self) -> tuple[Any, ...]:
        """What is measured."""
        return self.device, self.dtype, tuple(self.batch), self.name


def step_of(run: Callable[..., Any], model: Llama, batch: Batch) -> Step:
    """Forward and backward, with fresh gradients."""

    def step() -> Tensor:
        for weight in model.parameters():
            weight.grad = None
        loss: Tensor = run(*batch)
        loss.backward()
        return loss.detach()

    return step


def measure(
    size: Size,
    shape: tuple[int, int],
    device: str,
    dtype: torch.dtype,
    names: tuple[str, ...],
    rounds: int,
) -> list[Row]:
    """Every candidate at one batch, in interleaved rounds."""
    model, batch = make_model(size, device, dtype), make_batch(size, shape, device, dtype)
    torch.compiler.reset()
    steps, facts = {}, {}
    reference: dict[str, Tensor] = {}
    for name, run in candidates(model, batch, names):
        start = now(device)
        step = step_of(run, model, batch)
        loss = step()
        first = now(device) - start
        grads = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
        # float64 of every gradient would not fit: the largest relative distance of one parameter's.
        reference = reference or {key: grad.clone() for key, grad in grads.items()}
        error = max(_distance(grads[key], reference[key]) for key in reference)
        step()
        steps[name], facts[name] = step, (float(loss), error, first)
        print(f"  {name}: loss {loss:.5f}, gradients {error:.1e}, first {first:.1f} s", flush=True)
    del reference, grads
    peaks = {name: _peak(step, device) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = now(device)
            step()
            times[name].append(now(device) - start)
    return [
        Row(
            torch.cuda.get_device_name() if device == "cuda" else "cpu",
            str(dtype).removeprefix("torch."),
            shape,
            name,
            round(statistics.median(times[name]) * 1e3, 2),
            round(peaks[name], 2),
            round(facts[name][2], 1),
            facts[name][0],
            facts[name][1],
        )
        for name in steps
    ]


def now(device: str) -> float:
    """The time when all that was asked of the device so far is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).norm() / other.float().norm().clamp_min(1e-30))


def _peak(step: Step, device: str) -> float:
    """The most GiB that a step holds at a time, weights and gradients included."""
    if device != "cuda":
        return float("nan")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**30


@contextmanager
def profiled(device: str) -> Iterator[Any]:
    """What the steps inside spend their time on."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if device == "cuda" else []
    with torch.profiler.profile(activities=kinds) as profile:
        yield profile


def show_profile(
    size: Size, shape: tuple[int, int], device: str, dtype: torch.dtype, names: tuple[str, ...]
) -> None:
    """Where each candidate's step spends its time, by kernel."""
    model, batch = make_model(size, device, dtype), make_batch(size, shape, device, dtype)
    for name, run in candidates(model, batch, names):
        step = step_of(run, model, batch)
        for _ in range(3):
            step()
        with profiled(device) as profile:
            step()
            now(device)
        key = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
        print(f"== {name}, {shape}")
        print(profile.key_averages().table(sort_by=key, row_limit=28, max_name_column_width=70))


# ---- loss curves ----


def losses(
    size: Size,
    shape: tuple[int, int],
    device: str,
    dtype: torch.dtype,
    names: tuple[str, ...],
    steps: int,
) -> dict[str, list[float]]:
    """The loss at each of some steps of AdamW, for each candidate from the same start."""
    batches = [make_batch(size, shape, device, dtype, seed) for seed in range(4)]
    start = make_model(size, device, dtype)
    curves: dict[str, list[float]] = {}
    torch.compiler.reset()
    for name in names:
        model = copy.deepcopy(start)
        for _, run in candidates(model, batches[0], (name,)):
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
            curve = []
            for number in range(steps):
                curve.append(step_of(run, model, batches[number % len(batches)])())
                optimizer.step()
            curves[name] = [float(loss) for loss in curve]
    return curves


# ---- keeping and showing ----


def keep(rows: list[Row], path: Path) -> None:
    """Add rows to a file, in the place of those that were measured before."""
    kept = json.loads(path.read_text()) if path.exists() else []
    found = {Row(**each).key: each for each in kept} | {row.key: asdict(row) for row in rows}
    path.write_text(json.dumps([found[key] for key in sorted(found, key=str)], indent=1) + "\n")


def markdown(rows: list[Row]) -> str:
    """The rows as a table."""
    lines = ["| batch | candidate | ms | peak GiB | first step s |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.batch[0]} x {row.batch[1]} | {row.name} | {row.milliseconds:.1f} "
        f"| {row.peak_gib:.1f} | {row.first_seconds:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, and say what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a model that a CPU runs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--names", default=",".join(NAMES), help="the candidates")
    parser.add_argument("--batches", help="such as 8x2048,1x1024")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--losses", type=int, default=0, help="steps of training in float32")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by kernel")
    parser.add_argument("--json", type=Path, help="the file that keeps the rows")
    args = parser.parse_args()
    device, names = args.device, tuple(args.names.split(","))
    is_small = args.small or device == "cpu"  # the whole model takes a CPU minutes
    size = SMALL if is_small else Size()
    shapes = size.batches
    if args.batches:
        shapes = tuple(tuple(map(int, each.split("x"))) for each in args.batches.split(","))
    if args.losses:
        curves = losses(
            replace(size, layers=2), shapes[-1], device, torch.float32, names, args.losses
        )
        for name, curve in curves.items():
            far = max(abs(a - b) / abs(b) for a, b in zip(curve, curves["eager"], strict=True))
            print(f"{name}: loss {curve[0]:.5f} -> {curve[-1]:.5f}, at most {far:.1e} from eager")
        return
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    if args.profile:
        for shape in shapes:
            show_profile(size, shape, device, dtype, names)
        return
    rows = []
    for shape in shapes:
        print(f"{shape[0]} x {shape[1]} tokens, {dtype}, {device}", flush=True)
        found = measure(size, shape, device, dtype, names, args.rounds)
        rows += found
        print(markdown(found), flush=True)
        if args.json:
            keep(found, args.json)


if __name__ == "__main__":
    warnings.simplefilter("default")
    main()
