"""Squares, one element at a time: masks, grids and strides."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from benchmarks.faults.kernels.case import Pair, values

BLOCK = 64


@triton.jit
def square(x, y, n, LAST: tl.constexpr, BLOCK: tl.constexpr):
    """`y = x * x` for the first `n + LAST` elements."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n + LAST
    v = tl.load(x + at, mask=mask, other=0.0)
    tl.store(y + at, v * v, mask=mask)


@triton.jit
def square_unmasked(x, y, n, BLOCK: tl.constexpr):
    """`y = x * x`, whole blocks."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + at, v * v)


@triton.jit
def pulled(x, g, dx, n, LAST: tl.constexpr, BLOCK: tl.constexpr):
    """`dx = 2 x g` for the first `n + LAST` elements."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0)
    d = tl.load(g + at, mask=at < n, other=0.0)
    tl.store(dx + at, 2 * v * d, mask=at < n + LAST)


def forward(x: Tensor, last: int = 0) -> Tensor:
    """Squares, by a kernel that sees memory alone."""
    y = torch.empty_like(x)
    square[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), last, BLOCK)
    return y


def backward(x: Tensor, g: Tensor, last: int = 0, blocks: int | None = None) -> Tensor:
    """The gradient of squares."""
    dx = torch.empty_like(x)
    blocks = triton.cdiv(x.numel(), BLOCK) if blocks is None else blocks
    pulled[(blocks,)](x, g, dx, x.numel(), last, BLOCK)
    return dx


class Square(Function):
    """Sound: contiguous memory, whole masks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        return forward(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return backward(ctx.saved_tensors[0], g.contiguous())


class Padded(Square):
    """Sound: whole blocks are written into a tensor that has room for them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        blocks = triton.cdiv(x.numel(), BLOCK)
        room = x.new_empty(blocks * BLOCK)
        square_unmasked[(blocks,)](x, room, x.numel(), BLOCK)
        return room[: x.numel()].view(x.shape).clone()


class Unmasked(Square):
    """The last block is written as a whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        square_unmasked[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK)
        return y


class OneMore(Square):
    """The mask of backward is `at <= n`."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return backward(ctx.saved_tensors[0], g.contiguous(), last=1)


class OneLess(Square):
    """The mask of forward is `at < n - 1`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        return forward(x, last=-1)


class FloorGrid(Square):
    """As many blocks as fit, and none for the rest."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return backward(x, g.contiguous(), blocks=max(1, x.numel() // BLOCK))


class DenseCotangent(Square):
    """The cotangent is read as if it were contiguous."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return backward(ctx.saved_tensors[0], g)


class DenseInput(Square):
    """The input is read as if it were contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        square[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), 0, BLOCK)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


class StridedInput(Square):
    """Sound: the input is made contiguous, the gradient is PyTorch's."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * g


def plain(x: Tensor) -> Tensor:
    """Squares."""
    return x * x


def inputs() -> tuple[Tensor, ...]:
    """Whole blocks, as an author tries them."""
    return (values(4, 64),)


TAIL = ("uninitialised-memory", "differs-from-reference", "wrong-at-size", "wrong-at-batch")
PAIRS = [
    Pair("unmasked store", Unmasked, Padded, inputs, plain, ("out-of-bounds-write",)),
    Pair("mask with one more", OneMore, Square, inputs, plain, ("out-of-bounds-write",)),
    Pair("mask with one less", OneLess, Square, inputs, plain, TAIL),
    Pair("grid rounded down", FloorGrid, Square, inputs, plain, TAIL),
    Pair("cotangent taken for dense", DenseCotangent, Square, inputs, plain, ("cotangent-layout",)),
    Pair("input taken for dense", DenseInput, StridedInput, inputs, plain, ("input-layout",)),
]
