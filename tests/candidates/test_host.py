"""Processes are forked from a warm host, answer in plain data, and end with whoever asked."""

import os
import signal
import threading
import time

import pytest
import torch

from pullback.candidates.host import LostError, RefusedError, warm_host
from pullback.candidates.sources import sendable
from pullback.candidates.system import busiest, computed
from pullback.candidates.trials import Trial
from pullback.judge.example import example_of


def ends(x):
    os.abort()


def hangs(x):
    while True:
        time.sleep(0.01)


def writes(x):
    for end in range(3, 30):
        try:
            os.write(end, b"\0\0\0\5hello")
        except OSError:
            continue
    return x


def counts_by_itself(x):
    def count():
        while True:
            sum(range(1000))

    threading.Thread(target=count, daemon=True).start()
    return x.sin()


def loaded(candidate, tmp_path):
    peer = warm_host().fork("candidate")
    torch.save([example_of((torch.randn(3),))], tmp_path / "examples.pt")
    peer.ask("load", sendable(candidate, "candidate"), str(tmp_path / "examples.pt"))
    return peer


def call(peer, tmp_path, seconds=20.0):
    return peer.ask("call", Trial(1), str(tmp_path / "out.pt"), False, False, [], seconds=seconds)


def test_host_is_started_once():
    assert warm_host() is warm_host()


def test_results_come_in_a_file(tmp_path):
    peer = loaded(torch.sin, tmp_path)
    said = call(peer, tmp_path)
    peer.stop()

    assert said["lazy"] == ""
    assert len(torch.load(tmp_path / "out.pt", weights_only=True)) == 1


def test_a_crash_is_told(tmp_path):
    peer = loaded(ends, tmp_path)
    with pytest.raises(LostError, match="its process has ended"):
        call(peer, tmp_path)
    peer.stop()


def test_a_hang_is_told_and_ended(tmp_path):
    peer = loaded(hangs, tmp_path)
    with pytest.raises(LostError, match="did not end within"):
        call(peer, tmp_path, seconds=0.5)
    peer.stop()
    for _ in range(100):
        try:
            os.kill(peer.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(peer.pid, 0)


def test_garbage_is_no_answer(tmp_path):
    peer = loaded(writes, tmp_path)
    with pytest.raises((LostError, RefusedError)):
        call(peer, tmp_path)
    peer.stop()


def test_an_error_is_told(tmp_path):
    peer = warm_host().fork("candidate")
    with pytest.raises(RefusedError, match="FileNotFoundError"):
        peer.ask("load", sendable("nowhere.py:f", "candidate"), str(tmp_path / "none.pt"))
    peer.stop()


def test_nothing_of_a_candidate_runs_between_requests(tmp_path):
    peer = loaded(counts_by_itself, tmp_path)
    call(peer, tmp_path)
    time.sleep(0.05)  # a signal takes a moment
    before = computed(peer.pid)
    time.sleep(0.2)
    after = computed(peer.pid)
    peer.stop()

    assert busiest(before, after) <= 0.0


def test_a_stopped_process_is_woken_when_it_is_asked(tmp_path):
    peer = loaded(torch.sin, tmp_path)
    os.kill(peer.pid, signal.SIGSTOP)
    said = call(peer, tmp_path)
    peer.stop()

    assert said["lazy"] == ""


def test_host_is_replaced_when_it_is_gone():
    first = warm_host()
    os.kill(first._process.pid, signal.SIGKILL)
    first._process.wait()

    assert warm_host() is not first
