"""Ranks that wait in vain, beside those that a busy machine holds up."""

import os
import threading
import time

import pytest

from pullback.check.ranks import stuck
from pullback.check.ranks.collectives import SLOT, RankState, Slot
from pullback.check.ranks.stuck import StuckWatch, ThreadTimes, threads_of

LONGEST = 120.0


@pytest.fixture
def waiting(tmp_path):
    """A watch of one rank that waits in a collective."""
    with open(tmp_path / "slots", "w+b") as file:
        file.truncate(SLOT)
        slot = Slot(file.fileno(), 0)
    slot.tell(RankState.WAITS, 1)
    yield StuckWatch([slot], [os.getpid()], LONGEST)
    slot.close()


def first_stuck(monkeypatch, watch, thread, *, apart=0.05, looks=200):
    """The seconds after which a rank is stuck whose thread is given at each look, or None."""
    start = time.monotonic()
    passed = [0.0]
    monkeypatch.setattr(stuck.time, "monotonic", lambda: start + passed[0])
    monkeypatch.setattr(stuck, "threads_of", lambda pid: {1: thread(passed[0])})
    for number in range(1, looks):
        passed[0] = number * apart
        if watch.is_stuck([0], {}):
            return passed[0]
    return None


def test_rank_that_waits_and_does_nothing_is_stuck(monkeypatch, waiting):
    found = first_stuck(monkeypatch, waiting, lambda now: ThreadTimes(False, 1.0))

    assert found == pytest.approx(stuck.STUCK, abs=0.2)


def test_thread_that_only_looks_is_no_work_on_a_busy_machine(monkeypatch, waiting):
    """Gloo's: it runs a hundred times a second, and is seen in the queue at every look."""

    def polls(now):
        turns = int(now * 100)
        return ThreadTimes(True, 25e-6 * turns, 1e-3 * turns, turns)

    found = first_stuck(monkeypatch, waiting, polls)

    assert found == pytest.approx(stuck.STUCK, rel=0.2)


def test_thread_that_is_not_let_run_is_waited_for(monkeypatch, waiting):
    assert first_stuck(monkeypatch, waiting, lambda now: ThreadTimes(True, 1.0)) is None


def test_thread_that_is_let_run_now_and_then_is_waited_for(monkeypatch, waiting):
    """A millisecond of every tenth of a second: the rest of it in the queue."""

    def slow(now):
        turns = int(now * 10)
        return ThreadTimes(True, 1e-3 * turns, now, turns)

    assert first_stuck(monkeypatch, waiting, slow) is None


def test_thread_that_works_is_waited_for_until_the_longest(monkeypatch, waiting):
    found = first_stuck(monkeypatch, waiting, lambda now: ThreadTimes(False, now / 4), looks=3000)

    assert found == pytest.approx(LONGEST, abs=0.2)


def test_time_in_which_the_machine_stood_still_does_not_count(monkeypatch, waiting):
    idle = ThreadTimes(False, 1.0)

    assert first_stuck(monkeypatch, waiting, lambda now: idle, apart=1000.0, looks=4) is None


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="no /proc to look at")
def test_work_of_a_thread_is_seen():
    is_over = threading.Event()

    def spin():
        while not is_over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        before = threads_of(os.getpid())
        latest = time.monotonic() + 30
        while not stuck.has_worked(before, threads_of(os.getpid()), 0.0):
            assert time.monotonic() < latest
            time.sleep(0.01)
        assert threads_of(os.getpid())[thread.native_id].can_run
    finally:
        is_over.set()
        thread.join()

    assert not stuck.has_worked(before, before, 0.0)


def test_thread_that_works_for_much_longer_than_before_is_given_up(monkeypatch, waiting):
    monkeypatch.setattr(waiting, "_busy", 15.0)

    found = first_stuck(monkeypatch, waiting, lambda now: ThreadTimes(False, now / 4), looks=3000)

    assert found == pytest.approx(15.0, abs=0.2)
