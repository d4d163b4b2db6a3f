"""Repros tried once more, each in a process of its own in which nothing was checked before.

The worker that wrote a repro has called the function hundreds of times: what fails there may be
owed to what those calls left, in the function's state or in uninitialised memory. A fork of
this process is as fresh as a new one, and much faster to have.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pullback.check.findings.finding import Finding
from pullback.check.processes.endings import Died
from pullback.check.processes.isolate import answer_of
from pullback.check.repro.trying import ran
from pullback.check.target.spelling import imported
from pullback.check.target.target import Target

# Groups whose repros take long, or end the process that they run in.
LEFT = ("compile", "crash")
SECONDS = 20.0  # of work for the repro of one finding


def confirmed(findings: Iterable[Finding], target: Target) -> list[Finding]:
    """The findings, without the repros that do not fail by themselves."""
    return [f if _stands(f, target) else replace(f, repro="") for f in findings]


def _stands(finding: Finding, target: Target) -> bool:
    if not finding.repro or finding.rule.group in LEFT:
        return True
    head, call = imported(target)
    lines = set(head.splitlines())
    body = "\n".join(line for line in finding.repro.splitlines() if line not in lines)
    try:
        return bool(answer_of(lambda: ran(body, target, call)[0] is not None, SECONDS))
    except Died:
        return True  # by which it fails
