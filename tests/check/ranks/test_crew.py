"""The ranks as processes: started afresh where a fork cannot serve them."""

import pytest
import torch

import pullback as pb
from benchmarks.faults.ranks import planted, sound
from pullback.check.ranks import crew
from pullback.check.ranks.commands import Accept, Forward, RankPoint
from pullback.check.ranks.crew import Crew, RankEnd, RanksLost
from pullback.check.ranks.rank import RankJob
from pullback.check.target import target_of


def inputs(rank):
    return (torch.ones(4, 3) + rank,)


@pytest.mark.slow
def test_ranks_can_be_started_afresh(monkeypatch):
    monkeypatch.setattr(crew, "can_fork", lambda: "this process uses a GPU")
    found = Crew(RankJob(target_of(sound.AllReduceSum), inputs), 2)
    try:
        given = [reply.value for reply in found.ask([Accept()] * 2)]
    finally:
        found.stop()

    assert [float(one.args[0].value.sum()) for one in given] == [12.0, 24.0]
    assert not found.is_alive


@pytest.mark.slow
def test_what_cannot_be_sent_is_told(monkeypatch):
    monkeypatch.setattr(crew, "can_fork", lambda: "this process uses a GPU")
    generator = (x for x in ())

    with pytest.raises(pb.PullbackError) as caught:
        pb.check(sound.AllReduceSum, lambda rank: (generator,), ranks=2)

    assert "must be checked by 2 processes" in str(caught.value)


def test_lost_ranks_tell_what_they_stood_at():
    found = Crew(RankJob(target_of(planted.KilledOnOneRank), inputs), 2)
    try:
        found.ask([Accept()] * 2)
        with pytest.raises(RanksLost) as caught:
            found.ask([Forward(RankPoint({}))] * 2)
    finally:
        found.stop()

    first, _ = caught.value.standings
    assert first.end is RankEnd.ENDED
    assert str(first) == "rank 0 was ended by SIGKILL"
    assert not found.is_alive
