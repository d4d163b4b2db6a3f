"""What is done to a process group that is the caller's is undone."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import pullback as pb
from pullback.check.ranks import existing
from pullback.check.ranks.collectives import install
from pullback.check.ranks.existing import SECONDS, _Limits, _timeout_of
from pullback.errors import ExamplesError

OWN = timedelta(seconds=77)


@pytest.fixture
def world():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=OWN)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_methods_of_groups_are_methods_again(world):
    before = dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))

    install()()

    assert (dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))) == before
    x = torch.ones(2)
    dist.all_reduce(x)
    dist.barrier()
    assert x.tolist() == [1, 1]


def test_timeouts_of_all_groups_are_short_for_a_while(world):
    control = dist.new_group([0], timeout=timedelta(minutes=30))
    group = dist.new_group([0], timeout=timedelta(seconds=55))
    limits = _Limits()

    limits.set(but_for=control)
    short = [_timeout_of(one).total_seconds() for one in (world, group, control)]
    limits.lift()
    after = [_timeout_of(one).total_seconds() for one in (world, group, control)]

    assert short == [SECONDS, SECONDS, 1800]
    assert after == [77, 55, 1800]


def test_group_of_another_size_is_told(world, monkeypatch):
    monkeypatch.setattr(existing, "is_there", lambda: True)

    with pytest.raises(ExamplesError) as error:
        pb.check(torch.sin, (torch.ones(2),), ranks=3)

    assert str(error.value).splitlines()[1:] == ["  expected: ranks=1", "  got:      ranks=3"]
    assert "must be checked on all ranks of the process group" in str(error.value)
