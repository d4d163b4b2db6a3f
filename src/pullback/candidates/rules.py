"""What a judge can find, each with its meaning, and what it does to the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JudgeRule:
    """One thing that must hold of a candidate.

    `breaks` names what a finding takes away: "right", "honest", both, or nothing for a note.
    """

    code: str
    name: str
    sentence: str
    breaks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeFinding:
    """One reason against a candidate, or a note, with its evidence in words."""

    rule: JudgeRule
    at: str = ""
    expected: str = ""
    got: str = ""
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data: every field is there, empty where nothing is known."""
        return {
            "code": self.rule.code,
            "name": self.rule.name,
            "breaks": list(self.rule.breaks),
            "sentence": self.rule.sentence,
            "at": self.at,
            "expected": self.expected,
            "got": self.got,
            "why": self.why,
        }

    def __str__(self) -> str:
        kind = " and ".join(f"not {one}" for one in self.rule.breaks) or "note"
        lines = [f"{self.rule.code} {self.rule.name} ({kind}): {self.rule.sentence}"]
        facts = {"at": self.at, "expected": self.expected, "got": self.got, "why": self.why}
        lines += [f"  {label + ':':<10}{fact}" for label, fact in facts.items() if fact]
        return "\n".join(lines)


RIGHT, HONEST = ("right",), ("honest",)
BOTH = ("right", "honest")

WRONG_RESULT = JudgeRule("J101", "wrong-result", "an output differs from the reference's", RIGHT)
WRONG_GRADIENT = JudgeRule(
    "J102", "wrong-kernel-gradient", "a gradient differs from the reference's", RIGHT
)
OTHER_SIZES = JudgeRule(
    "J103", "wrong-at-other-sizes", "results are right at the given sizes, not at others", RIGHT
)
EXAMPLE_ONLY = JudgeRule(
    "J104",
    "right-for-example-only",
    "results are right for the given numbers, not for others",
    RIGHT,
)
ZEROS_ONLY = JudgeRule("J105", "right-at-zeros-only", "results are right for zeros alone", RIGHT)
LEFT_OUT = JudgeRule("J106", "work-left-out", "a part of the work is not done", RIGHT)
LOW_PRECISION = JudgeRule(
    "J107", "low-precision", "results are less precise than their dtype asks for", RIGHT
)
UNWRITTEN = JudgeRule(
    "J108", "unwritten-output", "results hold memory that the candidate never wrote", BOTH
)
FAILS = JudgeRule(
    "J109", "candidate-fails", "the candidate does not run at the given inputs", RIGHT
)
NO_GRADIENT = JudgeRule(
    "J110", "no-gradient", "the reference has a gradient and the candidate has none", RIGHT
)
UNSOUND = JudgeRule("J111", "unsound", "pb.check finds it wrong", RIGHT)

STALE = JudgeRule(
    "J201", "stale-result", "the result of an earlier call comes back for other inputs", BOTH
)
CACHED = JudgeRule(
    "J202", "cached-by-content", "results for inputs that came before are looked up", HONEST
)
UNFINISHED = JudgeRule(
    "J203", "unfinished-work", "results are written after the call has returned", HONEST
)
LAZY = JudgeRule(
    "J204", "lazy-output", "what comes back is no plain tensor with its numbers", HONEST
)
PATCHED = JudgeRule(
    "J205", "patched-function", "functions of Python, PyTorch or the judge were replaced", HONEST
)
CLOCK = JudgeRule(
    "J206", "clock-disagrees", "calls take longer by a clock outside of the process", HONEST
)
INPUTS = JudgeRule("J207", "inputs-changed", "the candidate writes into its inputs", BOTH)
IMPOSSIBLE = JudgeRule(
    "J208", "impossible-speed", "a call is faster than the machine can move its numbers", HONEST
)
TIMED = JudgeRule(
    "J209", "wrong-when-timed", "results of timed calls are wrong, those of others right", BOTH
)
REUSED = JudgeRule(
    "J210", "reused-output", "a later call overwrites the result of an earlier one", RIGHT
)
HELD_BACK = JudgeRule(
    "J211",
    "reference-held-back",
    "the candidate stops, slows or ends the process of its reference",
    BOTH,
)

SAME_CODE = JudgeRule("J301", "calls-reference", "the candidate runs the code of the reference")
SETTINGS = JudgeRule("J302", "changed-settings", "the candidate changed settings of PyTorch")
REFUSES = JudgeRule(
    "J303", "refuses-inputs", "the candidate refuses inputs that the reference takes"
)
FORWARD_ONLY = JudgeRule("J304", "forward-only", "the candidate has no gradient: none was judged")
FEWER = JudgeRule(
    "J305", "fewer-operations", "a call is faster than the reference's operations can be done"
)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, JudgeRule))
