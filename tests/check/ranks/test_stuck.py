"""Ranks that wait in vain, beside those that a busy machine holds up."""

import os
import threading
import time

import pytest

from pullback.check.ranks import stuck
from pullback.check.ranks.collectives import SLOT, RankState, Slot, Step
from pullback.check.ranks.stuck import Patience, StuckWatch, ThreadTimes, threads_of
from pullback.check.ranks.whereabouts import RankStack

LONGEST = 120.0
OWN = RankStack((("mine.py", "forward", 3),), is_own=True)
COMPILES = RankStack((("mine.py", "forward", 4),))


class Asked:
    """A rank that says where it stands when it is asked."""

    def __init__(self, stands):
        self._stands = stands

    def ask(self):
        pass

    def told(self):
        return self._stands


@pytest.fixture
def slots(tmp_path):
    """What is seen of two ranks."""
    with open(tmp_path / "slots", "w+b") as file:
        file.truncate(2 * SLOT)
        found = [Slot(file.fileno(), rank) for rank in range(2)]
    yield found
    for slot in found:
        slot.close()


@pytest.fixture
def waiting(slots):
    """A watch of one rank that waits in a collective."""
    slots[0].tell(RankState.WAITS, 1)
    return StuckWatch(slots[:1], [os.getpid()], [Asked(OWN)], Patience(LONGEST))


def first_stuck(monkeypatch, watch, thread, *, apart=0.05, looks=200, each=None):
    """The seconds after which ranks are stuck whose threads are given at each look, or None.

    Each has one thread of the number of its process; `each` is called before each look.
    """
    start = time.monotonic()
    passed = [0.0]
    monkeypatch.setattr(stuck.time, "monotonic", lambda: start + passed[0])
    monkeypatch.setattr(stuck, "threads_of", lambda pid: {pid: thread(passed[0])})
    for number in range(1, looks):
        passed[0] = number * apart
        if each is not None:
            each(passed[0])
        if watch.is_stuck(range(len(watch._slots)), {}):
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


def after_working(monkeypatch, slots, stands, patience, *, share=1.0, looks=3000):
    """The seconds after which two ranks are stuck, of which the first works in no collective."""
    slots[0].tell(RankState.WORKS, 1)
    work = [0.0]
    monkeypatch.setattr(stuck, "work_of", lambda pid: work[0])
    watch = StuckWatch(slots, [1, 2], [Asked(stands), Asked(OWN)], patience)

    def each(now):
        work[0] = share * now

    def thread(now):
        return ThreadTimes(False, now)

    return first_stuck(monkeypatch, watch, thread, looks=looks, each=each), watch.endless


def test_rank_that_loops_while_another_waits_is_given_up_soon(monkeypatch, slots):
    slots[1].tell(RankState.WAITS, 2)

    seconds, endless = after_working(monkeypatch, slots, OWN, Patience(LONGEST, own=5.0))

    assert seconds == pytest.approx(stuck.ASKED + 5.0, abs=0.3)
    assert endless[0].place == "mine.py:3"
    assert endless[0].seconds == pytest.approx(seconds, abs=0.1)


def test_time_of_a_loop_is_that_of_its_processor(monkeypatch, slots):
    """A tenth of a processor, on a machine with much else to do."""
    slots[1].tell(RankState.WAITS, 2)

    seconds, _ = after_working(monkeypatch, slots, OWN, Patience(LONGEST, own=5.0), share=0.1)

    assert seconds == pytest.approx(10 * (stuck.ASKED + 5.0), abs=1.0)


def test_rank_that_compiles_is_waited_for_until_the_longest(monkeypatch, slots):
    slots[1].tell(RankState.WAITS, 2)

    seconds, _ = after_working(monkeypatch, slots, COMPILES, Patience(LONGEST, own=5.0))

    assert seconds == pytest.approx(LONGEST, abs=0.2)


def test_ranks_that_all_work_have_longer_at_a_first_call(monkeypatch, slots):
    slots[1].tell(RankState.WORKS, 1)

    first, _ = after_working(monkeypatch, slots, OWN, Patience(LONGEST, own=5.0))
    slots[1].tell(RankState.WORKS, 1)
    later, _ = after_working(monkeypatch, slots, OWN, Patience(LONGEST, own=5.0, alone=True))

    assert first == pytest.approx(LONGEST, abs=0.2)
    assert later == pytest.approx(stuck.ASKED + 5.0, abs=0.3)


def test_rank_that_asks_in_vain_for_what_others_do_not_enter_is_stuck(monkeypatch, slots):
    step = Step("all_reduce", (0, 1), 1, "float32", "all_reduce")
    slots[0].tell(RankState.WAITS, 1, step)
    watch = StuckWatch(slots[:1], [1], [Asked(OWN)], Patience(LONGEST, own=5.0))
    monkeypatch.setattr(stuck, "work_of", lambda pid: time.monotonic())

    found = first_stuck(
        monkeypatch,
        watch,
        lambda now: ThreadTimes(False, now),
        each=lambda now: slots[0].tell(RankState.POLLS, 1, step),
    )

    assert found == pytest.approx(stuck.STUCK, abs=0.3)


def test_rank_that_asked_once_and_works_on_is_no_deadlock(monkeypatch, slots):
    step = Step("all_reduce", (0, 1), 1, "float32", "all_reduce")
    slots[0].tell(RankState.POLLS, 1, step)
    slots[1].tell(RankState.WAITS, 1, step)

    monkeypatch.setattr(stuck, "work_of", lambda pid: 0.0)
    watch = StuckWatch(slots, [1, 2], [Asked(OWN)] * 2, Patience(LONGEST, own=5.0))
    found = first_stuck(monkeypatch, watch, lambda now: ThreadTimes(False, now), looks=100)

    assert found is None
