"""What a worker is asked to do, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pullback.check.findings.finding import Finding, Skip
from pullback.check.findings.registered import Registered
from pullback.check.options import OptionsOf, nothing_chosen
from pullback.check.target.surrogate import Surrogate
from pullback.check.target.target import Target
from pullback.judge.example import Example


@dataclass(frozen=True, slots=True)
class Job:
    """What to check, and with which rules."""

    target: Target
    examples: tuple[Example, ...]
    rules: tuple[Registered, ...]
    profile: str = "standard"
    options_of: OptionsOf = nothing_chosen

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return self.target.names_of(max(len(example.args) for example in self.examples))


@dataclass(frozen=True, slots=True)
class Message:
    """What a worker says: that it begins a rule, what the rule found, or that all is done.

    "ready" comes of a fresh worker that has loaded what it needs.
    Before the first rule the examples are tried: "accepted" comes with the seconds that took, and
    the Functions that a program has called; "unfit" with the arguments that forward refused, and
    why, and whether it asked for other ranks. "noted" is something for the notes of the report.
    "intent" names gradients that are surrogates by their shape, and relations between the arguments
    that all examples keep. "calling" and "launching" tell of a call with these arguments, and of a
    kernel, that come next, where that was asked for. "refused" is a fork without autograd.
    """

    kind: str
    rule: int = -1
    results: tuple[Finding | Skip, ...] = ()
    tried: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    where: str = ""
    needs_ranks: bool = False
    seconds: float = 0.0
    inside: tuple[str, ...] = ()
    surrogates: tuple[Surrogate, ...] = ()
    relations: tuple[str, ...] = ()


Tell = Callable[[Message], Any]
