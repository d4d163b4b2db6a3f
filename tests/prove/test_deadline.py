"""A call ends when it is done or when its time is over, whatever it does, and leaves nothing."""

import contextlib
import threading
import time

import pytest

from pullback.prove import deadline
from pullback.prove.deadline import TimeLimitError, call_within


def forever():
    while True:
        pass


def stubborn():
    """Catch everything that may be caught."""
    while True:
        with contextlib.suppress(Exception):
            forever()


def deaf(limit):
    """Catch even what should not be caught, some times."""
    for _ in range(limit):
        with contextlib.suppress(BaseException):
            forever()
    return "end"


def test_result_is_given_back():
    assert call_within(60, divmod, 7, 3) == (2, 1)


def test_error_is_raised_again():
    with pytest.raises(ZeroDivisionError):
        call_within(60, divmod, 7, 0)


@pytest.mark.parametrize("call", [forever, stubborn], ids=["loop", "loop that catches"])
def test_endless_call_is_ended(call):
    before = threading.active_count()

    with pytest.raises(TimeLimitError):
        call_within(0.05, call)
    assert threading.active_count() == before


def test_call_that_catches_everything_is_ended():
    before = threading.active_count()

    with pytest.raises(TimeLimitError):
        call_within(0.05, deaf, 3)
    assert threading.active_count() == before


def test_call_in_c_does_not_hold_up():
    end = threading.Event()

    with pytest.raises(TimeLimitError):
        call_within(0.05, end.wait)
    end.set()


def test_busy_machine_takes_no_time_from_a_call(monkeypatch):
    slowly = iter(n / 10 for n in range(10**6))  # seconds of work: the clock runs much faster
    monkeypatch.setattr(deadline.time, "process_time", lambda: next(slowly))
    monkeypatch.setattr(deadline, "_AGAIN", 0.02)

    assert call_within(3, time.sleep, 0.2) is None
    with pytest.raises(TimeLimitError):
        call_within(0.3, time.sleep, 0.2)


def test_no_time_means_no_call():
    called = []

    with pytest.raises(TimeLimitError):
        call_within(0, called.append, 1)
    assert called == []


def test_limit_holds_outside_the_main_thread():
    caught = []

    def run():
        try:
            call_within(0.05, forever)
        except TimeLimitError:
            caught.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert caught == [True]


def test_nothing_is_printed_by_stopped_calls(capfd):
    for _ in range(20):
        with pytest.raises(TimeLimitError):
            call_within(0.001, forever)

    assert capfd.readouterr() == ("", "")


def test_calls_that_end_in_time_are_never_stopped():
    assert [call_within(0.5, sum, [n]) for n in range(200)] == list(range(200))
