"""What a check says: a rule, a finding against it, or the reason why it was not tried.

These are plain values of strings and numbers: they travel from the worker process to the caller,
into JSON and onto the screen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from pullback.check.findings.facts import About, At, Number, Words
from pullback.judge.run import Raised

PROFILES = ("quick", "standard", "deep")

INDENT = " " * 12  # where a fact begins, behind its label


class Severity(str, Enum):
    """How bad a finding is: a wrong result, a call that may break, or work done in vain."""

    WRONG = "wrong"
    FRAGILE = "fragile"
    WASTEFUL = "wasteful"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that must hold of a custom function.

    `profile` is the first profile in which the rule runs; `intent` names the declarations that
    silence it (see `target.Intent`); `sentence` is set from the first line of the rule's file.
    `wraps` says that tensors without memory of their own are handed in: a kernel that reads them
    ends the process, and is not at fault.
    """

    code: str
    name: str
    group: str
    severity: Severity = Severity.WRONG
    profile: str = "standard"
    intent: tuple[str, ...] = ()
    sentence: str = ""
    wraps: bool = False

    def is_called(self, *words: str) -> bool:
        """Whether one of these is its code, its name or its group."""
        return any(word in (self.code, self.name, self.group) for word in words)


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect, found by one rule.

    `at` says where (which gradient, which element, and the user's file and line), `expected` and
    `got` stand in the same units, `inputs` is the smallest failing input in words, `why` the reason
    where it is known, `fix` one action, `repro` a program of a few lines that shows it without us.
    These are words; `about` holds the data that they were made of.
    """

    rule: Rule
    at: str
    expected: str = ""
    got: str = ""
    inputs: str = ""
    why: str = ""
    fix: str = ""
    repro: str = ""
    subject: str = ""
    place: str = ""
    severity: Severity | None = None
    about: About = field(default_factory=About)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def weight(self) -> Severity:
        """The severity of this finding: the rule's, unless the finding has its own."""
        return self.severity or self.rule.severity

    @classmethod
    def made(
        cls,
        rule: Rule,
        *,
        at: At | str,
        expected: Number | Words | str = "",
        got: Number | Words | Raised | str = "",
        used: tuple[int, ...] | None = None,
        needed: tuple[str, ...] | None = None,
        detail: Any = None,
        why: str = "",
        fix: str = "",
        remedy: str = "",
        **words: Any,
    ) -> Finding:
        """A finding of typed facts, or of words where there is no more to know."""
        about = About(
            at if isinstance(at, At) else None,
            expected if isinstance(expected, Number) else None,
            got if isinstance(got, (Number, Raised)) else None,
            used,
            needed,
            bool(why),
            remedy,
            detail,
        )
        return cls(rule, str(at), str(expected), str(got), why=why, fix=fix, about=about, **words)

    def retold(self, at: At, expected: Number, got: Number) -> Finding:
        """The same finding, about another entry or of other numbers."""
        about = replace(self.about, at=at, expected=expected, got=got)
        return replace(self, at=str(at), expected=str(expected), got=str(got), about=about)

    def of(self, subject: str, place: str) -> Finding:
        """The same finding, about `subject`, whose backward stands at `place`."""
        return replace(self, subject=subject, place=self.place or place)

    @property
    def head(self) -> str:
        """The first line: code, name and severity of the rule, and the rule as a sentence."""
        rule = self.rule
        return f"{rule.code} {rule.name} ({self.weight}): {rule.sentence}".rstrip(": ")

    def labelled(self) -> list[tuple[str, str]]:
        """What is known, label by label, in the order in which it is read."""
        facts = {"in": self.subject, "place": self.place, "at": self.at, "inputs": self.inputs}
        facts |= {"expected": self.expected, "got": self.got, "why": self.why, "fix": self.fix}
        every = {**facts, **self.facts, "repro": self.repro}
        return [(label, fact) for label, fact in every.items() if fact]

    def __str__(self) -> str:
        lines = [self.head]
        for label, fact in self.labelled():
            if "\n" in fact:
                lines += [f"  {label}:", *(f"    {line}".rstrip() for line in fact.splitlines())]
            else:
                lines.append(f"  {label + ':':<10}{fact}".rstrip())
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Skip:
    """A rule that was not tried, or not to its end, and why.

    `is_refusal` says that something was tried, and was refused or went wrong, which a person should
    see; otherwise there was nothing for the rule to look at. `raised` is the error that kept it
    from being tried, where one did.
    """

    rule: Rule
    reason: str
    is_refusal: bool = False
    raised: Raised | None = None

    @classmethod
    def refused(cls, rule: Rule, reason: str = "", raised: Raised | None = None) -> Skip:
        """What was tried, and was refused or went wrong, perhaps with an error."""
        parts = [part for part in (reason, str(raised or "")) if part]
        return cls(rule, ": ".join(parts), is_refusal=True, raised=raised)

    def __str__(self) -> str:
        return f"{self.rule.code} {self.rule.name}: {self.reason}"
