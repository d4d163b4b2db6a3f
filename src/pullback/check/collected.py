"""What the workers of one check said so far, and the report that comes of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pullback.check.confirm import confirmed
from pullback.check.findings.causes import by_cause
from pullback.check.findings.finding import Finding, Rule, Skip
from pullback.check.findings.report import Proved, Report
from pullback.check.job import Job, Message
from pullback.check.options import Progress
from pullback.check.target.surrogate import Surrogate
from pullback.check.target.target import Target
from pullback.errors import ExamplesError

NEEDS_RANKS = "give `ranks=2`, on the command line `--ranks 2`: it is a function of several ranks"
FORWARD_RUNS = "give inputs for which forward runs"


class TimeIsUp(Exception):
    """The caller's time is over, and another rule would begin."""


class Collected:
    """What was said: results, notes, and the rule that is tried."""

    def __init__(
        self, job: Job, progress: Progress | None = None, limit: float | None = None
    ) -> None:
        self.job = job
        self.progress = progress
        self.limit = limit  # seconds, after which no rule is begun
        self.start = time.monotonic()
        self.results: list[Finding | Skip] = []
        self.tried: Counter[str] = Counter()
        self.notes: list[str] = []
        self.current = -1  # the number of the rule that is tried
        self.inside: tuple[str, ...] = ()  # the Functions that a program calls
        self.seconds = 0.0  # that one call takes
        self.interrupted = False
        self.proved: Proved | None = None
        self.surrogates: tuple[Surrogate, ...] = ()
        self.relations: tuple[str, ...] = ()
        self.lost: list[str] = []  # codes of rules that could not be tried

    # ---- while workers run ----

    def take(self, message: Message) -> None:
        """Note what a worker said; raises `ExamplesError` where forward refuses the examples."""
        if message.kind == "unfit":
            raise self._unfit(message)
        if message.kind == "accepted":
            self.seconds = message.seconds
            self.inside = message.inside
            self.notes += _graph_breaks(self.job.target)
        if message.kind == "noted" and message.reason not in self.notes:
            self.notes.append(message.reason)
        if message.kind == "intent":
            self._take_intent(message)
        if message.kind == "begin":
            self._begin(message.rule)
        self.results += message.results
        self.tried.update(message.tried)

    def _unfit(self, message: Message) -> ExamplesError:
        return ExamplesError(
            f"`{self.job.target.name}` must accept the inputs it is checked with",
            at=message.where,
            got=message.reason,
            fix=NEEDS_RANKS if message.needs_ranks else FORWARD_RUNS,
        )

    def _take_intent(self, message: Message) -> None:
        """Each worker says it again: it is noted once."""
        if message.surrogates and not self.surrogates:
            self.surrogates = message.surrogates
            self.notes.append(_surrogate_note(self.job.target, message.surrogates))
        if message.relations and not self.relations:
            self.relations = message.relations
            kept = "; ".join(message.relations)
            self.notes.append(f"only inputs were tried that keep what the example shows: {kept}")

    def _begin(self, number: int) -> None:
        self.current = number
        left = self.seconds_left()
        if left is not None and left < 0:
            raise TimeIsUp
        if self.progress is not None:
            self.progress(self.job.rules[number].rule.name, number, len(self.job.rules))

    def refuse(self, rule: Rule, reason: str) -> None:
        """Note why a rule was not tried."""
        self.results.append(Skip.refused(rule, reason))

    # ---- afterwards ----

    def seconds_left(self) -> float | None:
        """What is left of the time that was given, if any was."""
        return None if self.limit is None else self.limit - (time.monotonic() - self.start)

    def leave_rest(self) -> None:
        """Name the rules that are not tried, since the time is up."""
        for registered in self.job.rules[self.current :]:
            self.refuse(registered.rule, f"the time of {self.limit:g} s was up")

    def report(self, *, confirms: bool) -> Report:
        """The report of all that was said, each defect once.

        With `confirms`, only repros that fail by themselves are kept.
        """
        job = self.job
        names = job.names
        findings: Iterable[Finding] = by_cause(r for r in self.results if isinstance(r, Finding))
        if confirms and not self.interrupted:
            findings = confirmed(findings, job.target)
        return Report(
            subject=job.target.name,
            place=job.target.place("backward", "vjp", "forward"),
            findings=tuple(findings),
            skips=tuple(r for r in self.results if isinstance(r, Skip)),
            tried=dict(self.tried),
            rules=tuple(r.rule.code for r in job.rules),
            examples=tuple(example.words(names) for example in job.examples),
            seconds=time.monotonic() - self.start,
            profile=job.profile,
            notes=tuple(self.notes),
            interrupted=self.interrupted,
            proved=self.proved,
            surrogates=tuple(one.name for one in self.surrogates),
            lost=tuple(self.lost),
        )


def _graph_breaks(target: Target) -> Iterator[str]:
    """What `torch.compile` will stumble over."""
    for method, call in target.graph_breaks:
        yield f"`.{call}()` in {method} breaks the graph under torch.compile"


def _surrogate_note(target: Target, found: Sequence[Surrogate]) -> str:
    """Which gradients were not compared with forward's, why, and how to say that it is meant."""
    names = ", ".join(f"`{one.name}`" for one in found)
    first = found[0]
    if first.inside:
        return (
            f"surrogate gradient of {names}: `{first.inside}`, which it calls, has a gradient that "
            "is not forward's on purpose, so these were not compared with forward's"
        )
    value = repr(first.name) if len(found) == 1 else repr(tuple(one.name for one in found))
    assert first.shape is not None
    return (
        f"surrogate gradient of {names}: {first.shape.value}, and backward returns another "
        "gradient than forward's, so that was not compared. Where it is meant, say so in "
        f"`{target.name}`: declares = {{'surrogate': {value}}}"
    )
