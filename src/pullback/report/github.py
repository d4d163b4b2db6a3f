"""Findings as annotations of a GitHub workflow: `::error file=ops.py,line=41,title=...::...`.

A wrong result is an error, a fragile call a warning, work in vain a notice.
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.check.findings.finding import Finding, Severity
from pullback.check.findings.report import Report
from pullback.report.outcome import Remark

TOLD = ("at", "inputs", "expected", "got", "why", "fix", "also")
LEVELS = {Severity.WRONG: "error", Severity.FRAGILE: "warning", Severity.WASTEFUL: "notice"}


def render(
    reports: Sequence[Report], errors: Sequence[str] = (), remarks: Sequence[Remark] = ()
) -> str:
    """One line for each finding, each target that could not be checked, and each remark."""
    lines = [_annotation(finding) for report in reports for finding in report.findings]
    lines += [f"::error title=pullback could not run::{_data(error)}" for error in errors]
    lines += [
        f"::notice {_properties(remark.place, 'pullback')}::{_data(remark.text)}"
        for remark in remarks
    ]
    return "\n".join(lines)


def _annotation(finding: Finding) -> str:
    title = f"{finding.rule.code} {finding.rule.name}: {finding.subject}"
    properties = _properties(finding.place, title)
    return f"::{LEVELS[finding.weight]} {properties}::{_data(_brief(finding))}"


def _properties(place: str, title: str) -> str:
    """The properties of an annotation: where it stands, and what it is called."""
    file, _, line = place.rpartition(":")
    where = {"file": file, "line": line} if line.isdigit() else {"file": place}
    properties = {**where, "title": title}
    return ",".join(f"{key}={_property(value)}" for key, value in properties.items() if value)


def _brief(finding: Finding) -> str:
    """What fits into an annotation: all but the code, which is in the log and in `--json`."""
    facts = {label: fact for label, fact in finding.labelled() if label in TOLD}
    lines = [f"{label}: {fact}" for label, fact in facts.items()]
    return "\n".join([finding.rule.sentence or finding.rule.name, *lines])


def _data(text: str) -> str:
    """Text as a workflow command holds it: see `escapeData` of GitHub's toolkit."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
