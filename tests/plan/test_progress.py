"""Progress is told to whoever asks, drawn on a terminal, and silent elsewhere."""

import contextlib
import os
import signal
import threading

import pytest

from pullback.plan.progress import reporting, stoppable


def test_function_of_the_caller_is_told():
    told = []

    with reporting(lambda *step: told.append(step)) as report:
        report(1, 2, "a")

    assert told == [(1, 2, "a")]


def test_pipe_gets_nothing(capsys):
    with reporting(None) as report:
        report(1, 2, "a")

    assert capsys.readouterr() == ("", "")


def test_bar_is_drawn_without_a_thread(capsys):
    before = threading.active_count()

    with reporting(True) as report:
        report(1, 2, "combined")
        assert threading.active_count() == before

    assert threading.active_count() == before
    assert "combined" in capsys.readouterr().err


def test_refused_bar_is_silent(capsys):
    with reporting(False) as report:
        report(1, 2, "a")

    assert capsys.readouterr() == ("", "")


# ---- Ctrl-C ----


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_forgotten_interrupt_is_raised_again():
    with pytest.raises(KeyboardInterrupt), stoppable() as check:
        check()
        with contextlib.suppress(KeyboardInterrupt):  # as the callback of a weak reference does
            press()
        check()


def test_interrupt_is_raised_at_once():
    with pytest.raises(KeyboardInterrupt), stoppable():
        press()
        pytest.fail("went on")


def test_handler_is_put_back():
    with pytest.raises(KeyboardInterrupt), stoppable():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        press()

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handler_of_somebody_else_stays():
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with stoppable() as check:
            press()
            check()

        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_thread_leaves_signals_alone():
    found = []

    def run():
        with stoppable() as check:
            check()
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert found == [signal.default_int_handler]
