"""A report that was stored comes back the same, but for what rules keep to themselves."""

import json
from dataclasses import replace

import pytest

from pullback.check.findings.facts import At, Cotangent, Number, Second, Sheet
from pullback.check.findings.finding import Finding, Severity
from pullback.check.findings.report import Accepted, Proved
from pullback.report.stored import restored_report, stored
from tests.report.reports import CUT, REPORT, SOUND, VALUES, WRONG

ODD = Finding.made(
    VALUES,
    at=At(Second(Cotangent(1)), (0, 2)),
    expected=Number(complex(1, -2)),
    got=Number(float("inf")),
    severity=Severity.WASTEFUL,
    detail=object(),
)
SHEET = Sheet((2,), ((1.0, 2.0),), ((1.0, 3.0),))


def again(report):
    return restored_report(json.loads(json.dumps(stored(report))))


@pytest.mark.parametrize(
    "report",
    [
        REPORT,
        SOUND,
        CUT,
        replace(SOUND, proved=Proved(("x",), (), "for every size", ("a",), "")),
        replace(SOUND, accepted=(Accepted(WRONG, "ops.py:3", "why"),)),
        replace(REPORT, findings=(replace(WRONG, about=replace(WRONG.about, sheet=SHEET)),)),
    ],
    ids=["findings", "sound", "cut", "proved", "accepted", "sheet"],
)
def test_report_comes_back_as_it_was(report):
    assert again(report) == report


def test_detail_of_a_rule_is_left_out():
    (found,) = again(replace(REPORT, findings=(ODD,))).findings

    assert found == replace(ODD, about=replace(ODD.about, detail=None))


@pytest.mark.parametrize(
    "value",
    [None, 3, {}, {"is": "Popen"}, {"is": "Report"}, {"is": "Rule", "code": "a"}, {"a": 1, "b": 2}],
    ids=str,
)
def test_anything_else_is_no_report(value):
    assert restored_report(value) is None
