"""The result of a judgement: right, honest, how much faster, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pullback.candidates.rules import JudgeFinding
from pullback.candidates.schema import VERSION
from pullback.candidates.timing import Ratio


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `pb.judge` says of one candidate.

    `speedup` is how many times faster it is than the reference, forward and backward together where
    it has a gradient; None where it is not right, or could not be timed. `speedups` has every mode
    beside every rival. `seed` makes the same inputs again: `pb.judge(..., seed=verdict.seed)`.
    """

    candidate: str
    reference: str
    right: bool
    honest: bool
    findings: tuple[JudgeFinding, ...] = ()
    speedup: Ratio | None = None
    speedups: dict[str, dict[str, Ratio]] = field(default_factory=dict)
    times: dict[str, dict[str, float]] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    tried: dict[str, Any] = field(default_factory=dict)
    checked: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    seed: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it is right and honest."""
        return self.right and self.honest

    def __bool__(self) -> bool:
        return self.ok

    def names(self) -> list[str]:
        """The names of what was found, without notes."""
        return [finding.rule.name for finding in self.findings if finding.rule.breaks]

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain data: `docs/judge-schema.json` describes it."""
        return {
            "schema": VERSION,
            "candidate": self.candidate,
            "reference": self.reference,
            "right": self.right,
            "honest": self.honest,
            "findings": [finding.to_json() for finding in self.findings],
            "speedup": self.speedup.to_json() if self.speedup else None,
            "speedups": {
                mode: {rival: ratio.to_json() for rival, ratio in found.items()}
                for mode, found in self.speedups.items()
            },
            "seconds_per_call": self.times,
            "limits": self.limits,
            "tried": self.tried,
            "checked": list(self.checked),
            "notes": list(self.notes),
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
        }

    def dumps(self) -> str:
        """The verdict as the text of a JSON document."""
        return json.dumps(self.to_json(), indent=2)

    def __str__(self) -> str:
        words = "right" if self.right else "not right"
        words += ", honest" if self.honest else ", not honest"
        head = f"{self.candidate} against {self.reference}: {words}"
        head += f", {self.speedup} times as fast" if self.speedup else ""
        lines = [str(finding) for finding in self.findings]
        lines.append(head)
        for mode, found in self.speedups.items():
            shown = ", ".join(f"{ratio} of {rival}" for rival, ratio in found.items())
            lines.append(f"  {mode}: {shown}")
        tried = ", ".join(f"{key} {value}" for key, value in self.tried.items())
        lines.append(f"  tried: {tried}")
        lines += [f"  note: {note}" for note in self.notes]
        lines.append(f"  seed {self.seed}, {self.seconds:.1f} s")
        return "\n".join(lines)


def documents(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Several verdicts as one document, with what a gate asks first."""
    return {
        "schema": VERSION,
        "ok": all(verdict.ok for verdict in verdicts),
        "verdicts": [verdict.to_json() for verdict in verdicts],
    }
