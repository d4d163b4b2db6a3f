"""A report as plain values that can be written and read again, for results that are kept.

Reading makes the classes that are named here, and no others.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from pullback.check.findings import facts
from pullback.check.findings.finding import Finding, Rule, Severity, Skip
from pullback.check.findings.report import Accepted, FunctionUse, Proved, Report
from pullback.judge.run import Raised

KNOWN: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(Report, Finding, Rule, Skip, Proved, Accepted, Raised, FunctionUse),
        *(facts.About, facts.At, facts.Number, facts.Words, facts.Sheet),
        *(facts.Gradient, facts.Input, facts.Output, facts.Cotangent, facts.Both, facts.Second),
    )
}


def stored(value: Any) -> Any:
    """The value as JSON can hold it; what a rule knows besides, of a type of its own, is None."""
    if isinstance(value, Severity):
        return {"severity": value.value}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (tuple, list)):
        return {"tuple": [stored(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[key, stored(item)] for key, item in value.items()]}
    if is_dataclass(value) and type(value).__name__ in KNOWN:
        own = {field.name: stored(getattr(value, field.name)) for field in fields(value)}
        return {"is": type(value).__name__, **own}
    return None


def restored_report(value: Any) -> Report | None:
    """The report that was stored; None where it is none."""
    try:
        found = _restored(value)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return found if isinstance(found, Report) else None


def _restored(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "is" in value:
        parts = {key: _restored(item) for key, item in value.items() if key != "is"}
        return KNOWN[value["is"]](**parts)
    ((kind, held),) = value.items()
    if kind == "severity":
        return Severity(held)
    if kind == "complex":
        return complex(*held)
    if kind == "tuple":
        return tuple(_restored(item) for item in held)
    return {key: _restored(item) for key, item in held}
