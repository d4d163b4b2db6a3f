"""What is done to a process group that is the caller's is undone."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import pullback as pb
from pullback.check.findings.report import Report
from pullback.check.ranks import existing
from pullback.check.ranks.collectives import install
from pullback.check.ranks.commands import Accept
from pullback.check.ranks.existing import SECONDS, UNLIMITED, _Limits, _timeout_of
from pullback.check.ranks.rank import RankJob
from pullback.check.ranks.worker import backend_here
from pullback.check.target.target import target_of
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


def test_timeouts_that_another_pytorch_keeps_elsewhere_stay_and_are_told(world, monkeypatch):
    monkeypatch.setattr(existing, "distributed_c10d", SimpleNamespace())
    job = RankJob(target_of(torch.sin), (torch.ones(2),))

    def conduct(ask):
        assert len(ask([Accept()])[0].value.args) == 1
        return Report("sin", notes=("other",))

    report = existing.together(job, 1, conduct)

    assert report.notes == ("other", UNLIMITED)
    assert _timeout_of(world) == OWN


def test_each_rank_has_a_gpu_of_its_own_or_none_has(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)

    assert [backend_here(rank, 2) for rank in range(2)] == ["cpu:gloo,cuda:nccl"] * 2
    assert taken == [0, 1]
    assert backend_here(1, 4) == "gloo"
    assert taken == [0, 1]
