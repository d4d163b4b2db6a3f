"""The rules tried one after the other on one subject: what a worker does."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pullback.check.example import Example
from pullback.check.finding import Finding, Skip
from pullback.check.rules import Registered
from pullback.check.run import BackwardFailedError, ForwardRefusedError, told
from pullback.check.subject import Subject
from pullback.check.target import Target

# Seconds that one rule may take before it is asked to end, by profile.
SECONDS = {"quick": 0.5, "standard": 4.0, "deep": 60.0}


@dataclass(frozen=True, slots=True)
class Job:
    """What to check, and with which rules."""

    target: Target
    examples: tuple[Example, ...]
    rules: tuple[Registered, ...]
    profile: str = "standard"


@dataclass(frozen=True, slots=True)
class Message:
    """What a worker says: that it begins a rule, what the rule found, or that all is done."""

    kind: str  # "begin" | "found" | "end" | "refused"
    rule: int = -1
    results: tuple[Finding | Skip, ...] = ()
    tried: dict[str, int] = field(default_factory=dict)
    reason: str = ""


Tell = Callable[[Message], Any]


def work(job: Job, tell: Tell, first: int = 0) -> None:
    """Try the rules from number `first` on, telling of each as it begins and ends."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the threads of the parent are not in a fork, and waiting would hang
    try:
        subject = Subject(job.target, job.examples, profile=job.profile)
        for number in range(first, len(job.rules)):
            tell(Message("begin", number))
            subject.deadline = time.monotonic() + SECONDS[job.profile]
            tell(Message("found", number, tuple(try_rule(job.rules[number], subject))))
        tell(Message("end", tried=dict(subject.tried)))
    finally:
        torch.set_num_threads(threads)


def try_rule(registered: Registered, subject: Subject) -> Sequence[Finding | Skip]:
    """What one rule finds; an error on our side is a skip that says so, never a finding."""
    rule = registered.rule
    results: list[Finding | Skip] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for result in registered.check(subject):
                results.append(_completed(result, registered, subject))
    except (ForwardRefusedError, BackwardFailedError) as error:
        results.append(Skip(rule, f"the function raised: {error}"))
    except Exception as error:
        results.append(Skip(rule, f"the check itself failed: {told(error)}"))
    return results


def _completed(result: Finding | Skip, registered: Registered, subject: Subject) -> Finding | Skip:
    """The result with the whole rule in it, and the subject's name and place."""
    if isinstance(result, Skip):
        return Skip(registered.rule, result.reason)
    place = subject.target.place("backward", "vjp", "forward")
    return replace(result, rule=registered.rule).of(subject.target.name, place)
