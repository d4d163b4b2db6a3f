"""Progress is told to whoever asks, drawn on a terminal, and silent elsewhere."""

import threading

from pullback.plan.progress import reporting


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
