"""Reports become JUnit XML: a target is a suite, a rule a test."""

from dataclasses import replace
from xml.etree import ElementTree

from pullback.check.findings.finding import Severity
from pullback.errors import TargetError
from pullback.report.junit import render
from pullback.report.outcome import Outcome
from tests.report.reports import REPORT, SOUND, WRONG


def suites(outcome):
    return ElementTree.fromstring(render(outcome)).findall("testsuite")


def numbers(suite):
    return {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}


def test_each_rule_is_a_test():
    one, two = suites(Outcome((REPORT, SOUND)))

    assert [case.get("name") for case in one] == [
        "G101 wrong-gradient",
        "Y401 cotangent-layout",
        "B854 unread-saved",
    ]
    assert numbers(one) == {"tests": 3, "failures": 2, "errors": 0, "skipped": 0}
    assert numbers(two) == {"tests": 1, "failures": 0, "errors": 0, "skipped": 0}


def test_finding_is_told_whole():
    (suite,) = suites(Outcome((REPORT,)))
    failure = suite[0].find("failure")

    assert failure.get("message") == WRONG.head
    assert failure.text == str(WRONG)


def test_what_does_not_count_is_no_failure():
    (suite,) = suites(Outcome((REPORT,), fail_on=Severity.WRONG))

    assert numbers(suite)["failures"] == 1
    assert "unread-saved" in suite[2].find("system-out").text


def test_rule_that_was_not_tried_is_skipped():
    (suite,) = suites(Outcome((replace(REPORT, findings=(WRONG,)),)))

    assert numbers(suite) == {"tests": 3, "failures": 1, "errors": 0, "skipped": 2}
    assert suite[1].find("skipped").get("message") == "it has none"


def test_target_that_could_not_be_checked_is_an_error():
    (suite,) = suites(Outcome((), (("a:b", TargetError("`b` must be so")),)))

    assert numbers(suite)["errors"] == 1
    assert suite[0].find("error").text == "E401 target: `b` must be so"


def test_odd_characters_are_no_broken_document():
    odd = replace(WRONG, got="a\x00b\x1b[31m <&> ]]> \ud800")
    (suite,) = suites(Outcome((replace(REPORT, findings=(odd,)),)))

    assert "got:      a?b?[31m <&> ]]> ?" in suite[0].find("failure").text
