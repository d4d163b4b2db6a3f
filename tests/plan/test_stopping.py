"""Ctrl-C is heard even where Python forgets it, and the handler is put back."""

import contextlib
import os
import signal
import threading

import pytest

from pullback.plan.stopping import stoppable


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
