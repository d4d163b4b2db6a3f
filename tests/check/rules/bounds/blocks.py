"""Kernels without a GPU: they see addresses, and take whole blocks of sixteen numbers."""

import ctypes

import numpy
import torch
from torch.autograd import Function

BLOCK = 16


def block(tensor, count):
    """The first `count` numbers from the address of a tensor on, as a kernel sees them."""
    if tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError("it serves float32 and float64")
    kind = ctypes.c_double if tensor.dtype == torch.float64 else ctypes.c_float
    return numpy.frombuffer((kind * count).from_address(tensor.data_ptr()), kind)


def whole(n):
    """So many numbers in whole blocks."""
    return -(-n // BLOCK) * BLOCK


class Square(Function):
    """Each number once."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        n = x.numel()
        block(y, n)[:] = block(x, n) ** 2
        return y

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


class WholeBlocks(Square):
    """The last block of the output is written as a whole."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        n = x.numel()
        block(y, whole(n))[:n] = block(x, n) ** 2
        block(y, whole(n))[n:] = 0.0
        return y


class OneMore(Square):
    """The gradient has one number more than there is room for."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        made = torch.empty_like(x)
        made.copy_(2 * x * g)
        if x.numel() % BLOCK:
            block(made, x.numel() + 1)[-1] = 5.0
        return made


class Sum(Function):
    """The sum of all numbers, in whole blocks of which the rest counts as zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        held = block(x.contiguous(), x.numel())
        return x.new_tensor(float(held.sum()))

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape).clone()


class SumOfBlocks(Sum):
    """The rest of the last block is what stands there."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        x = x.contiguous()
        held = block(x, whole(x.numel()))
        return x.new_tensor(float(held.sum()))


class Padded(Sum):
    """The rest of the last block belongs to it."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        room = x.new_zeros(whole(x.numel()))
        room[: x.numel()] = x.flatten()
        return x.new_tensor(float(block(room, room.numel()).sum()))
