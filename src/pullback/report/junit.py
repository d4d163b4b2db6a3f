"""Reports as JUnit XML, which most CI systems show: a target is a class, a rule a test.

A finding that counts is a failure, one that does not stands in the output of its test, a rule that
was not tried is skipped, and a target that could not be checked is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from pullback.check.findings.finding import Finding
from pullback.check.findings.report import Report
from pullback.check.rules import explained
from pullback.report.outcome import Outcome, counts

SUFFIX = ".xml"
# What XML cannot hold, not even escaped.
_CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(outcome: Outcome) -> str:
    """One document, with a suite for each target."""
    root = ElementTree.Element("testsuites", name="pullback")
    for report in outcome.reports:
        _fill(ElementTree.SubElement(root, "testsuite", name=report.subject), report, outcome)
    for target, error in outcome.errors:
        suite = ElementTree.SubElement(root, "testsuite", name=target or "pullback")
        case = ElementTree.SubElement(suite, "testcase", classname=target or "pullback")
        case.set("name", "could be checked")
        _said(case, "error", error.rule, str(error))
        _count(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode")


def _fill(suite: ElementTree.Element, report: Report, outcome: Outcome) -> None:
    found: dict[str, list[Finding]] = {}
    for finding in report.findings:
        found.setdefault(finding.rule.code, []).append(finding)
    skipped = {skip.rule.code: skip.reason for skip in report.skips}
    file = report.place.rpartition(":")[0]
    for code, name in _tests(report, found):
        case = ElementTree.SubElement(suite, "testcase", classname=report.subject)
        case.set("name", f"{code} {name}")
        if file:
            case.set("file", file)
        findings = found.get(code, [])
        for finding in findings:
            if counts(finding.weight, outcome.fail_on):
                _said(case, "failure", finding.head, str(finding))
            else:
                ElementTree.SubElement(case, "system-out").text = _clean(str(finding))
        if not findings and code in skipped:
            ElementTree.SubElement(case, "skipped", message=_clean(skipped[code]))
    suite.set("time", f"{report.seconds:.3f}")
    _count(suite)


def _tests(report: Report, found: dict[str, list[Finding]]) -> Iterator[tuple[str, str]]:
    """The rules that were tried, and those that found something besides: codes and names."""
    names = {one.rule.code: one.rule.name for one in explained()}
    names |= {code: findings[0].rule.name for code, findings in found.items()}
    for code in dict.fromkeys((*report.rules, *found)):
        yield code, names.get(code, "")


def _said(case: ElementTree.Element, kind: str, message: str, text: str) -> None:
    ElementTree.SubElement(case, kind, message=_clean(message)).text = _clean(text)


def _count(suite: ElementTree.Element) -> None:
    """The numbers that readers want at a suite."""
    suite.set("tests", str(len(suite)))
    for key, kind in {"failures": "failure", "errors": "error", "skipped": "skipped"}.items():
        suite.set(key, str(sum(case.find(kind) is not None for case in suite)))


def _clean(text: str) -> str:
    return _CONTROL.sub("?", text)
