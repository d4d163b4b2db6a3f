"""Findings as SARIF 2.1.0, which code scanning of GitHub, GitLab and many editors read.

A wrong result is an error, a fragile call a warning, work in vain a note. What a baseline or a
comment accepts is there too, as a result that is suppressed. The fingerprint of a result leaves
lines and numbers out, so that one that has moved is known again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pullback.check.findings.finding import Finding, Rule, Severity
from pullback.check.findings.report import Accepted
from pullback.report.outcome import Outcome

SUFFIX = ".sarif"
LEVELS = {Severity.WRONG: "error", Severity.FRAGILE: "warning", Severity.WASTEFUL: "note"}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
TOLD = ("at", "inputs", "expected", "got", "why", "fix", "also")
ROOT = "%SRCROOT%"


def render(outcome: Outcome, version: str = "") -> str:
    """One SARIF log with one run."""
    found = [(finding, None) for report in outcome.reports for finding in report.findings]
    known = [(one.finding, one) for report in outcome.reports for one in report.accepted]
    every: list[tuple[Finding, Accepted | None]] = [*found, *known]
    rules = {finding.rule.code: finding.rule for finding, _ in every}
    codes = sorted(rules)
    driver = {
        "name": "pullback",
        **({"semanticVersion": version} if version else {}),
        "rules": [_rule(rules[code]) for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"description": {"text": "where the command ran"}}},
        "invocations": [_invocation(outcome)],
        "results": [_result(finding, codes, by) for finding, by in every],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.sentence or rule.name},
        "help": {"text": f"pullback explain {rule.code} prints the page of this rule."},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
        "properties": {"tags": [rule.group]},
    }


def _result(finding: Finding, codes: list[str], by: Accepted | None) -> dict[str, Any]:
    facts = [f"{label}: {fact}" for label, fact in finding.labelled() if label in TOLD]
    message = "\n".join(
        [f"{finding.subject}: {finding.rule.sentence or finding.rule.name}", *facts]
    )
    result: dict[str, Any] = {
        "ruleId": finding.rule.code,
        "ruleIndex": codes.index(finding.rule.code),
        "level": LEVELS[finding.weight],
        "message": {"text": message},
        "locations": _locations(finding.place),
        "partialFingerprints": {"pullback/v1": _fingerprint(finding)},
    }
    if by is not None:
        kind = "inSource" if by.reason else "external"
        result["suppressions"] = [{"kind": kind, "justification": by.reason or by.by}]
    return result


def _locations(place: str) -> list[dict[str, Any]]:
    file, _, line = place.rpartition(":")
    if not line.isdigit():
        file, line = place, ""
    if not file:
        return []
    physical: dict[str, Any] = {"artifactLocation": _artifact(file)}
    if line:
        physical["region"] = {"startLine": int(line)}
    return [{"physicalLocation": physical}]


def _artifact(file: str) -> dict[str, str]:
    path = Path(file)
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(path.as_posix()), "uriBaseId": ROOT}


def _fingerprint(finding: Finding) -> str:
    file = finding.place.rpartition(":")[0]
    about = str(finding.about.thing) or finding.about.remedy
    parts = (file, finding.subject, finding.rule.code, about)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _invocation(outcome: Outcome) -> dict[str, Any]:
    notes = [
        {"level": "error", "message": {"text": f"{target}: {error}".removeprefix(": ")}}
        for target, error in outcome.errors
    ]
    notes += [{"level": "note", "message": {"text": str(remark)}} for remark in outcome.remarks]
    is_whole = not outcome.errors and not any(report.interrupted for report in outcome.reports)
    return {"executionSuccessful": is_whole, "toolExecutionNotifications": notes}
