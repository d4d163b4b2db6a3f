"""A report on the screen has the words of `str(report)`, in colour and in lines where it may."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from pullback.check.findings.finding import Finding, Skip
from pullback.judge.run import Raised
from pullback.report.text import render, show
from tests.report.reports import CUT, LAYOUT, REPORT, SAVED, SOUND, VALUES


def shown(report, monkeypatch, *, width=60, terminal=True, **environment):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    file = io.StringIO()
    show(report, Console(file=file, width=width, force_terminal=terminal))
    return file.getvalue()


@pytest.mark.parametrize("report", [REPORT, SOUND, CUT], ids=["findings", "sound", "interrupted"])
def test_pipe_gets_the_plain_text(report, monkeypatch):
    text = shown(report, monkeypatch, terminal=False)

    assert text == f"{report}\n"


def test_terminal_gets_colours_by_severity(monkeypatch):
    text = shown(REPORT, monkeypatch)

    assert "\x1b[1;31mG101 wrong-gradient" in text
    assert "\x1b[1;33mY401 cotangent-layout" in text
    assert "\x1b[1;34mB854 unread-saved" in text
    assert "\x1b[32m0.170933" in text
    assert "\x1b[31m-0.0634372" in text


def test_sound_report_is_green(monkeypatch):
    assert "\x1b[1;32mCube: nothing found" in shown(SOUND, monkeypatch)
    assert "32m" not in shown(CUT, monkeypatch)


def test_no_color_is_respected(monkeypatch):
    text = shown(REPORT, monkeypatch, NO_COLOR="1")

    assert "31m" not in text
    assert "32m" not in text


@pytest.mark.parametrize("width", [40, 60, 200])
def test_lines_fit_the_terminal(width, monkeypatch):
    text = re.sub(r"\x1b\[[\d;]*m", "", shown(REPORT, monkeypatch, width=width))

    assert max(len(line) for line in text.splitlines()) <= width
    assert " ".join(text.split()) == " ".join(str(REPORT).split())


def test_code_is_not_broken():
    text = render(REPORT, width=20).plain

    assert "    assert torch.ones(1) == 2  # 100%\n" in text


def test_markup_in_words_is_text(monkeypatch):
    assert "[bold]backward[/]" in shown(REPORT, monkeypatch)


def test_reasons_to_look_at_are_told_once():
    skips = tuple(Skip.refused(rule, "it refuses aloud: ValueError") for rule in (SAVED, LAYOUT))
    lines = str(replace(REPORT, skips=skips)).splitlines()

    assert (
        "  not tried: unread-saved (B854), cotangent-layout (Y401): it refuses aloud: ValueError"
        in lines
    )


def test_rules_beyond_the_first_are_counted():
    rules = [replace(SAVED, name=f"rule-{i}", code=f"R{i}") for i in range(9)]
    report = replace(REPORT, skips=tuple(Skip.refused(rule, "backward fails") for rule in rules))

    assert (
        "  not tried: rule-0 (R0), rule-1 (R1), rule-2 (R2) and 6 more: backward fails"
        in str(report).splitlines()
    )


def test_error_of_finding_is_told_once():
    error = Raised("RuntimeError", "shape '[4, 8]' is invalid")
    finding = Finding.made(VALUES, at="backward", got=error)
    skips = tuple(
        Skip.refused(rule, words, error) for rule, words in ((SAVED, "one"), (LAYOUT, "two"))
    )
    lines = str(replace(REPORT, findings=(finding,), skips=skips)).splitlines()

    assert (
        "  not tried: unread-saved (B854), cotangent-layout (Y401): the error above comes first"
        in lines
    )


def test_rules_without_work_share_a_line():
    assert "  not applicable: unread-saved, cotangent-layout" in str(REPORT).splitlines()


def test_sound_report_says_its_inputs():
    sound = replace(SOUND, examples=("x: float64[9]",))

    assert "  inputs: x: float64[9]" in str(sound).splitlines()
    assert "  inputs: x: float64[9]" not in str(REPORT).splitlines()
