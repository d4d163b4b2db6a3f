"""Findings become a SARIF log that code scanning reads, and a moved finding is known again."""

import json
from dataclasses import replace

from pullback.check.findings.report import Accepted
from pullback.errors import TargetError
from pullback.report.outcome import Outcome, Remark
from pullback.report.sarif import render
from tests.report.reports import CUT, FRAGILE, REPORT, SOUND, WASTEFUL, WRONG


def run_of(*reports, **rest):
    log = json.loads(render(Outcome(reports, **rest)))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    return run


def test_log_is_stable(gold):
    outcome = Outcome((REPORT, SOUND), (("a:b", TargetError("`b` must be so")),))

    gold("check.sarif", render(outcome, "1.2.3") + "\n")


def test_results_name_their_rules():
    run = run_of(REPORT)
    rules = run["tool"]["driver"]["rules"]

    assert [rule["id"] for rule in rules] == ["B854", "G101", "Y401"]
    assert [rules[r["ruleIndex"]]["id"] for r in run["results"]] == ["G101", "Y401", "B854"]
    assert [result["level"] for result in run["results"]] == ["error", "warning", "note"]


def test_place_is_a_file_and_a_line():
    first, second, _ = run_of(REPORT)["results"]

    assert first["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "my%20ops%2Cold.py", "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": 41},
            }
        }
    ]
    assert second["locations"] == []


def fingerprint(finding):
    (result,) = run_of(replace(REPORT, findings=(finding,)))["results"]
    return result["partialFingerprints"]["pullback/v1"]


def test_moved_finding_is_known_again():
    assert fingerprint(WRONG) == fingerprint(replace(WRONG, place="my ops,old.py:99", got="7"))
    assert len({fingerprint(one) for one in (WRONG, FRAGILE, WASTEFUL)}) == 3


def test_accepted_findings_are_suppressed():
    accepted = (Accepted(WRONG, "ops.py:3", "as the paper"), Accepted(FRAGILE, "known.json"))
    results = run_of(replace(REPORT, findings=(), accepted=accepted))["results"]

    assert [result["suppressions"] for result in results] == [
        [{"kind": "inSource", "justification": "as the paper"}],
        [{"kind": "external", "justification": "known.json"}],
    ]


def test_what_could_not_run_is_said():
    run = run_of(errors=(("a:b", TargetError("`b` must be so")),), remarks=(Remark("c:1", "d"),))
    (invocation,) = run["invocations"]

    assert invocation["executionSuccessful"] is False
    assert [n["message"]["text"] for n in invocation["toolExecutionNotifications"]] == [
        "a:b: E401 target: `b` must be so",
        "c:1: d",
    ]
    assert run_of(CUT)["invocations"][0]["executionSuccessful"] is False
    assert run_of(SOUND)["invocations"][0]["executionSuccessful"] is True
