"""The form of a verdict as JSON; `docs/judge-schema.json` is made from it.

A field may be added; none is taken away or changes its meaning under the same version.
"""

from __future__ import annotations

from typing import Any

VERSION = "pullback-judge/1"

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_RATIO = {
    "type": "object",
    "description": "How many times faster, and the interval that holds it in 19 of 20 cases.",
    "required": ["value", "low", "high"],
    "properties": {"value": _NUMBER, "low": _NUMBER, "high": _NUMBER},
}


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": properties, **more}


FINDING = _object(
    {
        "code": _TEXT,
        "name": _TEXT,
        "breaks": {
            "type": "array",
            "description": "What it takes from the verdict; nothing for a note.",
            "items": {"type": "string", "enum": ["right", "honest"]},
        },
        "sentence": _TEXT,
        "at": _TEXT,
        "expected": _TEXT,
        "got": _TEXT,
        "why": _TEXT,
    }
)

CHECKED = _object(
    {
        "code": _TEXT,
        "name": _TEXT,
        "severity": {"type": "string", "enum": ["wrong", "fragile", "wasteful"]},
        "sentence": _TEXT,
        "at": _TEXT,
        "expected": _TEXT,
        "got": _TEXT,
    }
)

VERDICT = _object(
    {
        "schema": {"type": "string", "const": VERSION},
        "candidate": _TEXT,
        "reference": _TEXT,
        "right": {"type": "boolean"},
        "honest": {"type": "boolean"},
        "findings": {"type": "array", "items": FINDING},
        "speedup": {**_RATIO, "type": ["object", "null"]},
        "speedups": {
            "type": "object",
            "description": "By mode (forward, backward, both) and rival (reference, compiled).",
            "additionalProperties": {"type": "object", "additionalProperties": _RATIO},
        },
        "seconds_per_call": {
            "type": "object",
            "description": "Medians by mode and side (candidate, reference, compiled).",
            "additionalProperties": {"type": "object", "additionalProperties": _NUMBER},
        },
        "limits": {
            "type": "object",
            "description": "What the machine can do, and what share of it the candidate reaches.",
        },
        "tried": {
            "type": "object",
            "description": "How many trials, refusals, timed and verified calls, and rules.",
            "additionalProperties": {"type": "integer", "minimum": 0},
        },
        "checked": {"type": "array", "description": "Findings of pb.check.", "items": CHECKED},
        "notes": {"type": "array", "items": _TEXT},
        "seed": {"type": "integer", "minimum": 0},
        "seconds": {"type": "number", "minimum": 0},
    }
)

JUDGE_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "pullback judge --json",
    **_object(
        {
            "schema": {"type": "string", "const": VERSION},
            "ok": {"type": "boolean", "description": "Whether all are right and honest."},
            "verdicts": {"type": "array", "items": VERDICT},
        }
    ),
}
