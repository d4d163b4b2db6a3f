"""PyTorch's own differentiable collectives across ranks: what nobody here wrote."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as collective
from torch.autograd import Function

import pullback as pb


def rows(rank):
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn(4, 3, generator=generator),)


def all_reduce(x):
    return collective.all_reduce(x)


def broadcast(x):
    return collective.broadcast(x, 0)


def reduce(x):
    return collective.reduce(x, 0)


def scatter(x):
    return collective.scatter(list(x.chunk(2)), 0)


def all_to_all(x):
    parts = [part.contiguous() for part in x.chunk(2)]
    return torch.cat(collective.all_to_all([torch.empty_like(part) for part in parts], parts))


def all_to_all_single(x):
    return collective.all_to_all_single(torch.empty_like(x), x)


def all_gather(x):
    return torch.cat(collective.all_gather(x))


def gather(x):
    return torch.stack(collective.gather(x, 0))


def all_gather_tensor(x):
    return functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD)


SOUND = [
    *(all_reduce, broadcast, reduce, scatter),
    *(all_to_all, all_to_all_single, all_gather_tensor),
]
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
@pytest.mark.parametrize("program", SOUND, ids=lambda program: program.__name__)
def test_sound_collective_is_silent(program):
    report = pb.check(program, rows, ranks=2)

    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("program", [all_gather, gather], ids=lambda program: program.__name__)
def test_wrong_order_of_transposed_cotangents_is_found(program):
    """With gloo they send a cotangent as it lies in memory, and its gradient is another one."""
    report = pb.check(program, rows, ranks=2)

    assert [finding.rule.name for finding in report.findings] == ["strided-across-ranks"]


class OnOneRank(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        if dist.get_rank() == 0:
            g = functional.all_reduce(g, "sum", dist.group.WORLD) + 0
        return g


def test_functional_collective_is_named_where_ranks_are_stuck():
    (finding,) = pb.check(OnOneRank, rows, ranks=2, profile="quick").findings

    assert finding.rule.name == "ranks-deadlock"
    assert "rank 0 waited in all_reduce(float32[4, 3]) over ranks 0, 1 at " in finding.got
