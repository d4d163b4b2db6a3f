"""`pb.check` of a candidate with its reference, in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from pullback.candidates.host import Talk
from pullback.candidates.sources import Source
from pullback.candidates.system import computed
from pullback.candidates.trials import Trial, TrialMaker
from pullback.check.findings.finding import Severity
from pullback.check.runner import check


def serve(talk: Talk) -> None:
    """Do what is asked for, until nobody asks."""
    talk.serve({"check": _check})


def _check(
    candidate: Source,
    reference: Source,
    examples: str,
    trial: Trial | None,
    profile: str,
    seconds: float,
) -> dict[str, Any]:
    """The findings on a candidate, as plain data; those that say that it is wrong first.

    They are found at the examples, or at the inputs of a trial. `seconds` are those that it and its
    workers compute: other programs do not change what is tried.
    """
    given = torch.load(Path(examples), weights_only=False)
    made = TrialMaker(given).made(trial) if trial is not None else None
    args = [example.fresh() for example in (given if made is None else [made])]
    budget = _Budget(seconds)
    report = check(
        candidate.loaded(),
        args,
        reference=reference.loaded(),
        profile=profile,
        progress=budget,
    )
    findings = sorted(report.findings, key=lambda f: f.weight != Severity.WRONG)
    return {
        "findings": [
            {
                "code": finding.rule.code,
                "name": finding.rule.name,
                "severity": str(finding.weight),
                "sentence": finding.rule.sentence,
                "at": finding.at,
                "expected": finding.expected,
                "got": finding.got,
            }
            for finding in findings
        ],
        "rules": len(report.rules),
        "runs": report.tried.get("runs", 0),
        "refused": sorted({skip.rule.name for skip in report.skips if skip.is_refusal}),
        "left": budget.left,
    }


class _Budget:
    """Ends a check at the next rule after so many seconds of computing."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._before = seconds, self._computed()
        self.left = 0  # rules that were not begun

    def __call__(self, rule: str, number: int, total: int) -> None:
        if self._computed() - self._before > self._seconds:
            self.left = total - number
            raise KeyboardInterrupt

    def _computed(self) -> float:
        return sum(computed(os.getpid()).values())
