"""Softmax, means and norms, a row for each program: edges of blocks, sums, accumulators."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from benchmarks.faults.kernels.case import Pair, values

# ---- softmax ----


@triton.jit
def softmax_kernel(
    x, y, n, OTHER: tl.constexpr, SHIFT: tl.constexpr, MASK: tl.constexpr, B: tl.constexpr
):
    """One row: what is outside of it is `OTHER`, or read where `MASK` is false."""
    row = tl.program_id(0)
    at = tl.arange(0, B)
    inside = at < n if MASK else at >= 0
    v = tl.load(x + row * n + at, mask=inside, other=OTHER)
    top = tl.max(v, 0) if SHIFT else 0.0
    e = tl.exp(v - top)
    tl.store(y + row * n + at, e / tl.sum(e, 0), mask=at < n)


def softmax(
    x: Tensor, other: float = -float("inf"), shift: bool = True, mask: bool = True
) -> Tensor:
    """The softmax of each row."""
    y = torch.empty_like(x)
    n = x.shape[-1]
    rows = x.numel() // n
    softmax_kernel[(rows,)](x, y, n, other, shift, mask, triton.next_power_of_2(n))
    return y


def softmax_backward(y: Tensor, g: Tensor) -> Tensor:
    """Its gradient."""
    return y * (g - (y * g).sum(-1, keepdim=True))


class Softmax(Function):
    """Sound."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = softmax(x.contiguous())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return softmax_backward(ctx.saved_tensors[0], g)


class ZeroOutside(Softmax):
    """What is outside of the row counts as zero, and not as nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = softmax(x.contiguous(), other=0.0)
        ctx.save_for_backward(y)
        return y


class ReadsBeyond(Softmax):
    """The load has no mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = softmax(x.contiguous(), mask=False)
        ctx.save_for_backward(y)
        return y


class Overflows(Softmax):
    """The largest entry is not taken away first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = softmax(x.contiguous(), shift=False)
        ctx.save_for_backward(y)
        return y


def plain_softmax(x: Tensor) -> Tensor:
    """PyTorch's own."""
    return x.softmax(-1)


# ---- means ----


@triton.jit
def mean_kernel(
    x, y, n, DROPS: tl.constexpr, BY_BLOCK: tl.constexpr, NARROW: tl.constexpr, B: tl.constexpr
):
    """The mean of one row, in blocks."""
    row = tl.program_id(0)
    at = tl.arange(0, B)
    total = tl.zeros((B,), dtype=tl.bfloat16 if NARROW else tl.float32)
    end = n // B * B if DROPS else n
    for start in range(0, end, B):
        v = tl.load(x + row * n + start + at, mask=start + at < n, other=0.0)
        total += v.to(total.dtype)
    count = tl.cdiv(n, B) * B if BY_BLOCK else n
    tl.store(y + row, tl.sum(total.to(tl.float32), 0) / count)


def mean(x: Tensor, drops: bool = False, by_block: bool = False, narrow: bool = False) -> Tensor:
    """The mean of each row."""
    n = x.shape[-1]
    y = torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)
    mean_kernel[(y.numel(),)](x.contiguous(), y, n, drops, by_block, narrow, 16)
    return y


class Mean(Function):
    """Sound."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return mean(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return (g / ctx.shape[-1]).unsqueeze(-1).expand(ctx.shape).contiguous()


class DropsRest(Mean):
    """The loop ends before the last block."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return mean(x, drops=True)


class DividesByBlocks(Mean):
    """The mean is over whole blocks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return mean(x, by_block=True)


class NarrowSum(Mean):
    """The sum is kept in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return mean(x, narrow=True)


def plain_mean(x: Tensor) -> Tensor:
    """PyTorch's own."""
    return x.mean(-1)


# ---- scaled rows, and the gradient of the scale ----


@triton.jit
def scale_gradient(x, g, dw, n, ATOMIC: tl.constexpr, B: tl.constexpr):
    """`dw += x * g` for one row."""
    row = tl.program_id(0)
    at = tl.arange(0, B)
    mask = at < n
    v = tl.load(x + row * n + at, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(g + row * n + at, mask=mask, other=0.0).to(tl.float32)
    if ATOMIC:
        tl.atomic_add(dw + at, (v * d).to(dw.dtype.element_ty), mask=mask)
    else:
        old = tl.load(dw + at, mask=mask, other=0.0)
        tl.store(dw + at, old + v * d, mask=mask)


def scaled_by(x: Tensor, g: Tensor, dw: Tensor, atomic: bool = True) -> Tensor:
    """The gradient of the scale, into `dw`."""
    n = x.shape[-1]
    rows = x.numel() // n
    scale_gradient[(rows,)](
        x.contiguous(), g.contiguous(), dw, n, atomic, triton.next_power_of_2(n)
    )
    return dw


class Scale(Function):
    """Sound: sums by `atomic_add` in float32, whose order is not fixed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        dw = torch.zeros(w.shape, dtype=torch.float32, device=w.device)
        return g * w, scaled_by(x, g, dw).to(w.dtype)


class Races(Scale):
    """Rows add to the same place without waiting for each other."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        dw = torch.zeros(w.shape, dtype=torch.float32, device=w.device)
        return g * w, scaled_by(x, g, dw, atomic=False).to(w.dtype)


class EmptySum(Scale):
    """The sum begins with whatever is there."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        dw = torch.empty(w.shape, dtype=torch.float32, device=w.device)
        return g * w, scaled_by(x, g, dw).to(w.dtype)


class NarrowAtomics(Scale):
    """The sum over rows is kept in the dtype of the weight, which may be narrow."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return g * w, scaled_by(x, g, torch.zeros_like(w))


class KeptSum(Scale):
    """The accumulator is kept between calls, and never set to zero again."""

    kept: ClassVar[dict[Any, Tensor]] = {}

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        key = w.shape, w.device
        if key not in KeptSum.kept:
            KeptSum.kept[key] = torch.zeros(w.shape, dtype=torch.float32, device=w.device)
        return g * w, scaled_by(x, g, KeptSum.kept[key]).to(w.dtype)


class ResetSum(Scale):
    """Sound: the accumulator is kept between calls, and set to zero each time."""

    kept: ClassVar[dict[Any, Tensor]] = {}

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        key = w.shape, w.device
        if key not in ResetSum.kept:
            ResetSum.kept[key] = torch.zeros(w.shape, dtype=torch.float32, device=w.device)
        return g * w, scaled_by(x, g, ResetSum.kept[key].zero_()).to(w.dtype).clone()


def plain_scale(x: Tensor, w: Tensor) -> Tensor:
    """Rows times a scale."""
    return x * w


# ---- tuning and streams ----


@triton.autotune([triton.Config({"B": b}, num_warps=4) for b in (128, 64)], key=["n"])
@triton.jit
def one_block(x, y, n, B: tl.constexpr):
    """`y = x * x` for the first block of a row: longer rows are not done."""
    row = tl.program_id(0)
    at = tl.arange(0, B)
    v = tl.load(x + row * n + at, mask=at < n, other=0.0)
    tl.store(y + row * n + at, v * v, mask=at < n)


@triton.autotune([triton.Config({"B": b}, num_warps=4) for b in (128, 64)], key=["n"])
@triton.jit
def all_blocks(x, y, n, B: tl.constexpr):
    """`y = x * x` for a row."""
    row = tl.program_id(0)
    for start in range(0, n, B):
        at = start + tl.arange(0, B)
        v = tl.load(x + row * n + at, mask=at < n, other=0.0)
        tl.store(y + row * n + at, v * v, mask=at < n)


class Tuned(Function):
    """Sound: any block will do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.zeros_like(x)
        all_blocks[(x.numel() // x.shape[-1],)](x, y, x.shape[-1])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


class TunedToSize(Tuned):
    """Right for blocks that hold a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.zeros_like(x)
        one_block[(x.numel() // x.shape[-1],)](x, y, x.shape[-1])
        return y


class OwnStream(Function):
    """Sound: works on a stream of its own, and lets both wait for each other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _beside(x, waits=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


class ImpatientStream(OwnStream):
    """Works on a stream of its own, which waits for nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _beside(x, waits=False)


_streams: dict[torch.device, Any] = {}


def _beside(x: Tensor, *, waits: bool) -> Tensor:
    if not x.is_cuda:
        return x * x
    side = _streams.setdefault(x.device, torch.cuda.Stream(x.device))
    current = torch.cuda.current_stream()
    if waits:
        side.wait_stream(current)
    with torch.cuda.stream(side):
        y = x * x
    current.wait_stream(side)
    y.record_stream(current)
    x.record_stream(side)
    return y


def plain_square(x: Tensor) -> Tensor:
    """Squares."""
    return x * x


def rows() -> tuple[Tensor, ...]:
    """Rows as long as a block."""
    return (values(8, 64),)


def long_rows() -> tuple[Tensor, ...]:
    """Rows of many blocks, in bfloat16."""
    return (values(4, 1024, dtype=torch.bfloat16),)


def many_rows() -> tuple[Tensor, ...]:
    """Many rows, and a scale for them."""
    return values(64, 64), values(64, seed=1)


def narrow_rows() -> tuple[Tensor, ...]:
    """Many rows in bfloat16, and a scale for them."""
    return values(512, 64, dtype=torch.bfloat16), values(64, seed=1, dtype=torch.bfloat16)


def wide_rows() -> tuple[Tensor, ...]:
    """Rows of a hundred."""
    return (values(8, 100),)


SIZED = ("differs-from-reference", "wrong-at-size", "wrong-at-batch")
NARROW = ("differs-from-reference", "low-precision-sum")
PAIRS = [
    Pair("zero outside of a row", ZeroOutside, Softmax, rows, plain_softmax, SIZED),
    Pair("load without a mask", ReadsBeyond, Softmax, rows, plain_softmax, ("out-of-bounds-read",)),
    Pair(
        "no shift by the largest entry",
        Overflows,
        Softmax,
        rows,
        plain_softmax,
        ("wrong-far-out", "wrong-at-huge", "differs-from-reference"),
    ),
    Pair("last block left out", DropsRest, Mean, rows, plain_mean, SIZED),
    Pair("mean over whole blocks", DividesByBlocks, Mean, rows, plain_mean, SIZED),
    Pair("sum in bfloat16", NarrowSum, Mean, long_rows, plain_mean, NARROW, needs_gpu=True),
    Pair(
        "rows that race",
        Races,
        Scale,
        many_rows,
        plain_scale,
        ("racing-kernel", "differs-from-reference", "wrong-gradient"),
        needs_gpu=True,
    ),
    Pair(
        "sum that begins anywhere",
        EmptySum,
        Scale,
        many_rows,
        plain_scale,
        ("uninitialised-memory",),
    ),
    Pair(
        "atomics in bfloat16",
        NarrowAtomics,
        Scale,
        narrow_rows,
        plain_scale,
        NARROW,
        needs_gpu=True,
    ),
    Pair(
        "sum kept between calls",
        KeptSum,
        ResetSum,
        many_rows,
        plain_scale,
        ("result-depends-on-history", "racing-kernel", "backward-twice", "differs-from-reference"),
    ),
    Pair(
        "block of one size only",
        TunedToSize,
        Tuned,
        wide_rows,
        plain_square,
        ("depends-on-tuning", "differs-from-reference"),
        needs_gpu=True,
    ),
    Pair(
        "stream that does not wait",
        ImpatientStream,
        OwnStream,
        rows,
        plain_square,
        ("wrong-on-stream",),
        needs_gpu=True,
    ),
]
