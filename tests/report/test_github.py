"""Findings become annotations that GitHub can read."""

import re

from pullback.report.github import render
from tests.report.reports import REPORT, SOUND


def parsed(line):
    """The level, properties and text of an annotation, as GitHub's runner reads them."""
    level, told, text = re.fullmatch(r"::(\w+) ?([^:]*)::(.*)", line).groups()
    pairs = dict(part.split("=", 1) for part in told.split(","))
    return level, {k: _plain(v) for k, v in pairs.items()}, _plain(text)


def _plain(text):
    for code, char in {"%0A": "\n", "%0D": "\r", "%3A": ":", "%2C": ",", "%25": "%"}.items():
        text = text.replace(code, char)
    return text


def test_each_finding_is_one_line():
    lines = render([REPORT, SOUND]).splitlines()

    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning", "::notice"]


def test_annotation_is_read_back():
    level, properties, text = parsed(render([REPORT]).splitlines()[0])

    assert level == "error"
    assert properties == {
        "file": "my ops,old.py",
        "line": "41",
        "title": "G101 wrong-gradient: Sine",
    }
    assert text.splitlines() == [
        "Each gradient must be right",
        "at: gradient of `x` at [6], wrong in 9 of 9 entries",
        "inputs: x: float64[9]",
        "expected: 0.170933",
        "got: -0.0634372",
        f"why: {REPORT.findings[0].why}",
        "fix: use `x`",
    ]


def test_finding_without_place_has_no_file():
    _, properties, _ = parsed(render([REPORT]).splitlines()[1])

    assert properties == {"title": "Y401 cotangent-layout: Sine"}


def test_error_is_an_annotation():
    assert render([], ["E401 a: b\n  c"]) == "::error title=pullback could not run::E401 a: b%0A  c"


def test_sound_report_says_nothing():
    assert render([SOUND]) == ""
