"""Reports for other programs: one JSON document in a form that is documented and has a version.

`SCHEMA` is the JSON Schema of the document; `docs/check-schema.json` is made from it. A field may
be added without a new version; one that goes or changes its meaning makes a new one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pullback.check.findings.facts import About, Both, Number, Second, Thing, Value
from pullback.check.findings.facts import number as shown
from pullback.check.findings.finding import PROFILES, Finding, Rule, Severity
from pullback.check.findings.report import Accepted, Proved, Report
from pullback.errors import PullbackError
from pullback.report.outcome import Remark

VERSION = "pullback.check/1"

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_TEXTS = {"type": "array", "items": _TEXT}


def _object(**fields: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": sorted(fields),
        "additionalProperties": True,
    }


_THING = {"type": ["object", "null"], "properties": {"kind": _TEXT}, "required": ["kind"]}
_NUMBER = {"type": ["number", "string", "null"]}
_ABOUT = _object(
    thing=_THING,
    index={"type": ["array", "null"], "items": _COUNT},
    expected=_NUMBER,
    got=_NUMBER,
    raised={"type": ["object", "null"], "properties": {"type": _TEXT, "text": _TEXT}},
)
_RULE = _object(code=_TEXT, name=_TEXT, group=_TEXT, sentence=_TEXT)
_FINDING = _object(
    rule=_RULE,
    severity={"enum": [severity.value for severity in Severity]},
    subject=_TEXT,
    file=_TEXT,
    line=_COUNT,
    at=_TEXT,
    inputs=_TEXT,
    expected=_TEXT,
    got=_TEXT,
    why=_TEXT,
    fix=_TEXT,
    repro=_TEXT,
    facts={"type": "object", "additionalProperties": _TEXT},
    about=_ABOUT,
)
_REPORT = _object(
    subject=_TEXT,
    file=_TEXT,
    line=_COUNT,
    ok={"type": "boolean"},
    interrupted={"type": "boolean"},
    lost={"type": "array", "items": _TEXT},
    profile={"enum": list(PROFILES)},
    seconds={"type": "number", "minimum": 0},
    findings={"type": "array", "items": _FINDING},
    skips={"type": "array", "items": _object(rule=_RULE, reason=_TEXT)},
    rules=_TEXTS,
    tried={"type": "object", "additionalProperties": _COUNT},
    examples=_TEXTS,
    notes=_TEXTS,
    blind=_TEXTS,
    accepted={
        "type": "array",
        "items": _object(rule=_RULE, at=_TEXT, by=_TEXT, reason=_TEXT),
    },
    functions={
        "type": "array",
        "items": _object(
            name=_TEXT,
            calls=_COUNT,
            places=_TEXTS,
            signatures=_COUNT,
            saved=_COUNT,
            fewer_derived={"type": ["integer", "null"], "minimum": 0},
            fewer_combined={"type": "object", "additionalProperties": _COUNT},
        ),
    },
    proved={
        "anyOf": [
            {"type": "null"},
            _object(gradients=_TEXTS, unknown=_TEXTS, scope=_TEXT, provisos=_TEXTS, reason=_TEXT),
        ]
    },
)
_ERROR = _object(
    target=_TEXT,
    code=_TEXT,
    name=_TEXT,
    rule=_TEXT,
    facts={"type": "object", "additionalProperties": _TEXT},
)
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "What `pullback check --json` prints",
    **_object(
        schema={"const": VERSION},
        ok={"type": "boolean"},
        reports={"type": "array", "items": _REPORT},
        errors={"type": "array", "items": _ERROR},
        remarks={"type": "array", "items": _object(place=_TEXT, text=_TEXT)},
    ),
}


Errors = Sequence[tuple[str, PullbackError]]


def render(reports: Sequence[Report], errors: Errors = (), remarks: Sequence[Remark] = ()) -> str:
    """The document as text; `errors` are targets that could not be checked, and why."""
    whole = document(reports, errors, remarks)
    return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)


def document(
    reports: Sequence[Report], errors: Errors = (), remarks: Sequence[Remark] = ()
) -> dict[str, Any]:
    """The document as plain values."""
    return {
        "schema": VERSION,
        "ok": all(report.ok and not report.interrupted for report in reports) and not errors,
        "reports": [_report(report) for report in reports],
        "errors": [_error(target, error) for target, error in errors],
        "remarks": [asdict(remark) for remark in remarks],
    }


def _error(target: str, error: PullbackError) -> dict[str, Any]:
    """Why a target could not be checked: the error, the rule it broke, and what is known of it."""
    facts = {label: fact for label, fact in error.facts.items() if fact}
    about = {"target": target, "code": error.code, "name": error.name}
    return {**about, "rule": error.rule, "facts": facts}


def _report(report: Report) -> dict[str, Any]:
    return {
        "subject": report.subject,
        **_place(report.place),
        "ok": report.ok,
        "interrupted": report.interrupted,
        "profile": report.profile,
        "seconds": round(report.seconds, 3),
        "findings": [_finding(finding) for finding in report.findings],
        "skips": [{"rule": _rule(skip.rule), "reason": skip.reason} for skip in report.skips],
        "rules": list(report.rules),
        "tried": dict(report.tried),
        "examples": list(report.examples),
        "notes": list(report.notes),
        "lost": list(report.lost),
        "blind": list(report.blind),
        "accepted": [_accepted(one) for one in report.accepted],
        "functions": [{**asdict(use), "places": list(use.places)} for use in report.functions],
        "proved": None if report.proved is None else _proved(report.proved),
    }


def _accepted(accepted: Accepted) -> dict[str, Any]:
    """A finding that does not count, and what says so."""
    finding = accepted.finding
    about = {"rule": _rule(finding.rule), "at": finding.at}
    return {**about, "by": accepted.by, "reason": accepted.reason}


def _proved(proved: Proved) -> dict[str, Any]:
    """What holds for all inputs, as plain data."""
    return {
        "gradients": list(proved.gradients),
        "unknown": list(proved.unknown),
        "scope": proved.scope,
        "provisos": list(proved.provisos),
        "reason": proved.reason,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": _rule(finding.rule),
        "severity": finding.weight.value,
        "subject": finding.subject,
        **_place(finding.place),
        "at": finding.at,
        "inputs": finding.inputs,
        "expected": finding.expected,
        "got": finding.got,
        "why": finding.why,
        "fix": finding.fix,
        "repro": finding.repro,
        "facts": dict(finding.facts),
        "about": _about(finding.about),
    }


def _about(about: About) -> dict[str, Any]:
    """What a finding is about, as plain data; None where there are only words."""
    return {
        "thing": _thing(about.thing),
        "index": None if about.index is None else list(about.index),
        "expected": _number(about.expected.value if about.expected is not None else None),
        "got": _number(about.got.value if isinstance(about.got, Number) else None),
        "raised": None if about.raised is None else asdict(about.raised),
    }


def _thing(thing: Thing) -> dict[str, Any] | None:
    """A thing of the call: its kind, and the name of an input or the number of an output."""
    if isinstance(thing, str):
        return None
    kind = type(thing).__name__.lower()
    if isinstance(thing, Both):
        return {"kind": kind, "names": [thing.one, thing.two]}
    if isinstance(thing, Second):
        return {"kind": kind, "of": _thing(thing.of)}
    return {"kind": kind, **asdict(thing)}


def _number(value: Value) -> float | str | None:
    """A number; as text where JSON has none for it."""
    is_plain = value is None or (isinstance(value, (int, float)) and math.isfinite(value))
    return value if is_plain else shown(value)  # type: ignore[return-value]


def _rule(rule: Rule) -> dict[str, str]:
    return {"code": rule.code, "name": rule.name, "group": rule.group, "sentence": rule.sentence}


def _place(place: str) -> dict[str, Any]:
    """`file` and `line`, empty and 0 where the place is not known."""
    file, _, line = place.rpartition(":")
    return {"file": file, "line": int(line)} if line.isdigit() else {"file": place, "line": 0}
