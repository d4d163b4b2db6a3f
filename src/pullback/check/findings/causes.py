"""Deduplication: one defect is reported once, by the rule that names its cause.

A function that overwrites its cotangent, reads uninitialised memory, or remembers earlier calls
gives wrong numbers wherever numbers are compared, so that a dozen rules find it. The `EXPLAINS` of
a rule says of what others find that it is the cause. What is explained so becomes a line of the
cause; findings of one rule with one remedy, for several inputs, become lines of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pullback.check.findings.explaining import Cause
from pullback.check.findings.finding import Finding, Severity
from pullback.check.findings.registered import KNOWN

ALSO = "also"  # the label of what is folded into a finding


def all_causes() -> list[tuple[str, Cause]]:
    """The causes with the names of their rules, in the order in which they are asked."""
    found = [(known.rule.name, cause) for known in KNOWN.values() for cause in known.explains]
    return sorted(found, key=lambda pair: (pair[1].rank, pair[0]))


def by_cause(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each defect, with what follows from it: causes first, then by severity."""
    order = list(Severity)
    left = sorted(findings, key=lambda f: (order.index(f.weight), f.rule.code))
    causes: list[Finding] = []
    for name, cause in all_causes():
        own = [f for f in left if f.rule.name == name and _holds(cause, f)]
        if not own:
            continue
        following = [f for f in left if cause.is_behind(own[0], f)]
        if following:
            also = f"seen as {_names(following)}, since {cause.since}"
            left = [f for f in left if f not in following and f not in own]
            if cause.weighs:
                worst = min((f.weight for f in (own[0], *following)), key=order.index)
                own[0] = replace(own[0], severity=worst)
            causes += _grouped([_with(own[0], also), *own[1:]])
    return [*causes, *_grouped(left)]


def _holds(cause: Cause, finding: Finding) -> bool:
    """Whether a cause holds; not where it fails to say, as one of another package may."""
    try:
        return cause.holds(finding)
    except Exception:  # code of another package: the finding stands by itself
        return False


def _grouped(findings: Sequence[Finding]) -> list[Finding]:
    """Those of one rule that one action repairs, as one."""
    found: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        found.setdefault(_repair(finding), []).append(finding)
    return [_as_one(several) for several in found.values()]


def _repair(finding: Finding) -> tuple[object, ...]:
    """What two findings share that are one: rule, severity, what kind of thing is wrong, remedy."""
    about = finding.about
    raised = about.raised.type if about.raised else ""
    return finding.rule.code, finding.weight, raised, type(about.thing), about.remedy


def _as_one(several: Sequence[Finding]) -> Finding:
    first, *others = several
    if not others:
        return first
    return _with(first, "for " + "; ".join(_brief(other) for other in others))


def _brief(finding: Finding) -> str:
    """A finding in a line: where, and what is wrong."""
    at = finding.at if finding.about.at is None else finding.about.at.brief
    if finding.expected and finding.got:
        return f"{at}: expected {finding.expected}, got {finding.got}"
    return f"{at}: {finding.got}" if finding.got else at


def _with(finding: Finding, also: str) -> Finding:
    before = finding.facts.get(ALSO)
    return replace(finding, facts={**finding.facts, ALSO: f"{before}; {also}" if before else also})


def _names(findings: Sequence[Finding]) -> str:
    return ", ".join(dict.fromkeys(f"{f.rule.name} ({f.rule.code})" for f in findings))
