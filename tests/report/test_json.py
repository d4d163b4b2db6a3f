"""The JSON of a report keeps its documented form, and its version."""

import json
import math
from dataclasses import replace

import pytest

from pullback.check.findings.facts import At, Both, Cotangent, Gradient, Number, Output, Second
from pullback.check.findings.finding import Finding
from pullback.errors import TargetError
from pullback.judge.run import Raised
from pullback.report.json import SCHEMA, VERSION, document, render
from tests.report.reports import CUT, REPORT, SOUND, VALUES

UNFIT = ("ops:x", TargetError("`x` must be something that can be called", got="int"))


def faults_of(value, schema, where="document"):
    """Where a value breaks a schema: the keywords of JSON Schema that ours uses."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool}
    kinds |= {"integer": int, "number": (int, float)}
    told = schema.get("type", [])
    several = told if isinstance(told, list) else [told]
    if value is None and "null" in several:
        return []
    if several and not any(_is(value, kinds.get(one)) for one in several):
        return [f"{where} is no {told}"]
    found = []
    if "const" in schema and value != schema["const"]:
        found.append(f"{where} is not {schema['const']}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where} is none of {schema['enum']}")
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{where} is too small")
    found += [f"{where} has no {name}" for name in schema.get("required", []) if name not in value]
    for name, inner in schema.get("properties", {}).items():
        found += faults_of(value[name], inner, f"{where}.{name}") if name in value else []
    rest = schema.get("additionalProperties")
    if isinstance(rest, dict):
        for name, inner in value.items():
            if name not in schema.get("properties", {}):
                found += faults_of(inner, rest, f"{where}.{name}")
    for i, item in enumerate(value if "items" in schema else []):
        found += faults_of(item, schema["items"], f"{where}[{i}]")
    return found


def _is(value, kind):
    return kind and isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def test_document_keeps_the_schema():
    text = render([REPORT, SOUND, CUT], [UNFIT])

    assert faults_of(json.loads(text), SCHEMA) == []


def test_document_is_stable(gold):
    gold("check.json", render([REPORT, SOUND], [UNFIT]) + "\n")


def test_every_field_is_documented():
    whole = document([REPORT])
    report = whole["reports"][0]
    schema = SCHEMA["properties"]["reports"]["items"]

    assert set(whole) == set(SCHEMA["properties"])
    assert set(report) == set(schema["properties"])
    assert set(report["findings"][0]) == set(
        schema["properties"]["findings"]["items"]["properties"]
    )


@pytest.mark.parametrize(
    ("reports", "errors", "ok"),
    [([SOUND], [], True), ([REPORT], [], False), ([SOUND], [UNFIT], False), ([CUT], [], False)],
)
def test_ok_means_all_was_checked(reports, errors, ok):
    assert document(reports, errors)["ok"] is ok


def test_version_is_in_the_document():
    assert document([])["schema"] == VERSION == "pullback.check/1"


def test_error_is_told_in_parts():
    (error,) = document([], [UNFIT])["errors"]

    assert error == {
        "target": "ops:x",
        "code": "E401",
        "name": "target",
        "rule": "`x` must be something that can be called",
        "facts": {"got": "int"},
    }


def test_place_is_split():
    finding, no_place, _ = document([REPORT])["reports"][0]["findings"]

    assert (finding["file"], finding["line"]) == ("my ops,old.py", 41)
    assert (no_place["file"], no_place["line"]) == ("", 0)


FACTS = {
    "number": ((At(Gradient("x"), (6,)), Number(0.5), Number(-2)), {"index": [6], "got": -2}),
    "infinite": ((At(Output(1)), Number(0.5), Number(math.inf)), {"got": "inf"}),
    "complex": ((At(Output(1)), Number(1j), Number(0)), {"expected": "0+1j"}),
    "raised": (
        ("backward", "", Raised("ValueError", "no")),
        {"thing": None, "raised": {"type": "ValueError", "text": "no"}},
    ),
    "gradient": ((At(Gradient("x")), "", ""), {"thing": {"kind": "gradient", "name": "x"}}),
    "output": ((At(Output(1)), "", ""), {"thing": {"kind": "output", "number": 1}}),
    "two slots": ((At(Both("x", "y")), "", ""), {"thing": {"kind": "both", "names": ["x", "y"]}}),
    "second": (
        (At(Second(Cotangent(0))), "", ""),
        {"thing": {"kind": "second", "of": {"kind": "cotangent", "number": 0}}},
    ),
}


@pytest.mark.parametrize("name", FACTS)
def test_facts_are_plain_data(name):
    (at, expected, got), wanted = FACTS[name]
    found = Finding.made(VALUES, at=at, expected=expected, got=got)
    text = render([replace(REPORT, findings=(found,))])
    about = json.loads(text)["reports"][0]["findings"][0]["about"]

    assert faults_of(json.loads(text), SCHEMA) == []
    assert {key: about[key] for key in wanted} == wanted


# ---- the validator itself ----

PLANTED = {
    "missing": ({}, {"required": ["a"]}),
    "other type": ({"a": 1}, {"properties": {"a": {"type": "string"}}}),
    "bool is no number": (True, {"type": "integer"}),
    "none of two types": ([], {"type": ["number", "null"]}),
    "no null": (None, {"type": "object"}),
    "wrong item": ([1, "a"], {"items": {"type": "integer"}}),
    "wrong value": ({"b": "c"}, {"type": "object", "additionalProperties": {"type": "integer"}}),
    "none of": ("d", {"enum": ["e"]}),
    "another": ("d", {"const": "e"}),
    "negative": (-1, {"type": "integer", "minimum": 0}),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_document_is_refused(fault):
    value, schema = PLANTED[fault]

    assert len(faults_of(value, schema)) == 1
