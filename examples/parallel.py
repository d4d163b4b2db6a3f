"""A sum over ranks as a Function, of the convention that its outputs are replicated.

pullback check examples/parallel.py --ranks 2
"""

import torch
import torch.distributed as dist
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class SumOverRanks(Function):
    """The sum of all ranks' inputs, on every rank."""

    declares = {"placements": {"x": "shard", "out": "replicate"}}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        return grad_out

    @staticmethod
    def examples(rank):
        """Other numbers on each rank."""
        return (torch.linspace(-1, 1, 12).reshape(4, 3) + rank,)
