"""Whose cotangents give the wrong part of a gradient is told."""

import torch
import torch.distributed as dist
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback as pb


def rows(rank):
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn(3, 4, generator=generator),)


def ends(x):
    found = [torch.empty_like(x[0]) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x.sum(0))
    return found


class PrefixForSuffix(Function):
    """A cumulative sum over ranks, whose backward adds what comes before, and not after."""

    @staticmethod
    def forward(ctx, x):
        return x.cumsum(0) + sum(ends(x)[: dist.get_rank()], torch.zeros_like(x[0]))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        before = sum(ends(g)[: dist.get_rank()], torch.zeros_like(g[0]))
        return g.flip(0).cumsum(0).flip(0) + before


def test_wrong_part_of_other_ranks_is_told():
    (finding,) = pb.check(PrefixForSuffix, rows, ranks=2, profile="quick").findings

    assert finding.rule.name == "wrong-across-ranks"
    assert "those of rank 0 to the gradient on rank 1" in finding.why


class OwnPartAlone(Function):
    """A sum over ranks, whose backward forgets the cotangents of the others."""

    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total * (dist.get_rank() + 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * (dist.get_rank() + 1)


def test_missing_parts_of_other_ranks_are_told():
    (finding,) = pb.check(OwnPartAlone, rows, ranks=2, profile="quick").findings

    assert finding.rule.name == "missing-collective"
    assert "the other ranks' cotangents are missing" in str(finding)
