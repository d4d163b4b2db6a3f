"""The ranks as processes: started afresh where a fork cannot serve them."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import pullback as pb
from benchmarks.faults.ranks import planted, sound
from pullback.check.ranks import crew
from pullback.check.ranks.commands import Accept, Forward, RankPoint
from pullback.check.ranks.crew import Crew, RankEnd, RanksLost
from pullback.check.ranks.rank import RankJob
from pullback.check.target.target import target_of


def inputs(rank):
    return (torch.ones(4, 3) + rank,)


@pytest.mark.slow
def test_ranks_can_be_started_afresh(monkeypatch):
    monkeypatch.setattr(crew, "why_no_fork", lambda: "this process uses a GPU")
    found = Crew(RankJob(target_of(sound.AllReduceSum), inputs), 2)
    try:
        given = [reply.value for reply in found.ask([Accept()] * 2)]
    finally:
        found.stop()

    assert [float(one.args[0].value.sum()) for one in given] == [12.0, 24.0]
    assert not found.is_alive


@pytest.mark.slow
def test_what_cannot_be_sent_is_told(monkeypatch):
    monkeypatch.setattr(crew, "why_no_fork", lambda: "this process uses a GPU")
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


STUCK = """
import ctypes, os, torch
from torch.autograd import Function
import pullback as pb

class Sleeps(Function):
    @staticmethod
    def forward(ctx, x):
        os.write(1, b"%d\\n" % os.getpid())  # whole lines, whoever else writes
        ctypes.PyDLL(None).sleep(600)  # in C, and no other thread of Python's can run
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g

pb.check(Sleeps, (torch.ones(2),), ranks=2)
"""


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="no /proc to look at")
def test_ranks_end_with_a_parent_that_is_killed(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", STUCK],
        stderr=subprocess.PIPE,  # where what ranks print goes
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    ranks = [int(parent.stderr.readline()) for _ in range(2)]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    latest = time.monotonic() + 30
    while any(map(is_running, ranks)) and time.monotonic() < latest:
        time.sleep(0.05)

    assert not any(map(is_running, ranks))
    assert not list(tmp_path.glob("pullback-*"))
