"""Products of matrices in tiles: edges of the sum, strides of the result."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from benchmarks.faults.kernels.case import Pair, values

TILE = 16


@triton.jit
def product(a, b, c, M, N, K, step, CUT: tl.constexpr, T: tl.constexpr):
    """One tile of `c = a @ b`, `step` elements of `c` apart from row to row."""
    i = tl.program_id(0) * T + tl.arange(0, T)
    j = tl.program_id(1) * T + tl.arange(0, T)
    total = tl.zeros((T, T), dtype=tl.float32)
    for start in range(0, K, T):
        k = start + tl.arange(0, T)
        inside = k < K if CUT else k < K + T
        left = tl.load(
            a + i[:, None] * K + k[None, :], mask=(i[:, None] < M) & inside[None, :], other=0.0
        )
        right = tl.load(
            b + k[:, None] * N + j[None, :], mask=inside[:, None] & (j[None, :] < N), other=0.0
        )
        total += tl.sum(left[:, :, None] * right[None, :, :], 1)
    tl.store(c + i[:, None] * step + j[None, :], total, mask=(i[:, None] < M) & (j[None, :] < N))


def multiply(a: Tensor, b: Tensor, *, cut: bool = True, step: int | None = None) -> Tensor:
    """`a @ b`."""
    a, b = a.contiguous(), b.contiguous()
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, dtype=a.dtype, device=a.device)
    grid = triton.cdiv(m, TILE), triton.cdiv(n, TILE)
    product[grid](a, b, c, m, n, k, n if step is None else step, cut, TILE)
    return c


class Product(Function):
    """Sound."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return multiply(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return multiply(g, b.t()), multiply(a.t(), g)


class UncutSum(Product):
    """The sum runs over whole tiles: into the next row of one factor, and past the other."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return multiply(a, b, cut=False)


class WrongStep(Product):
    """The rows of a gradient are as far apart as those of the other factor."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return multiply(g, b.t()), multiply(a.t(), g, step=b.shape[0])


def plain(a: Tensor, b: Tensor) -> Tensor:
    """PyTorch's own."""
    return a @ b


def inputs() -> tuple[Tensor, ...]:
    """Square matrices of whole tiles."""
    return values(16, 16), values(16, 16, seed=1)


SIZED = ("out-of-bounds-write", "differs-from-reference", "uninitialised-memory", "wrong-at-size")
PAIRS = [
    Pair("sum over whole tiles", UncutSum, Product, inputs, plain, ("out-of-bounds-read", *SIZED)),
    Pair("rows too far apart", WrongStep, Product, inputs, plain, SIZED),
]
