"""All that one run of `pullback check` came to: what every format is made of."""

from __future__ import annotations

from dataclasses import dataclass

from pullback.check.findings.finding import Severity
from pullback.check.findings.report import Report
from pullback.errors import PullbackError

Failure = tuple[str, PullbackError]  # a target, and what keeps it from being checked


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to tidy up: an allowance or an entry of a baseline that nothing needs any more."""

    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The reports, what could not be checked, and what is to be tidied up.

    `fail_on` is the least severity that counts: findings below it are shown, and fail nothing.
    """

    reports: tuple[Report, ...] = ()
    errors: tuple[Failure, ...] = ()
    remarks: tuple[Remark, ...] = ()
    fail_on: Severity = Severity.FRAGILE

    @property
    def fails(self) -> bool:
        """Whether there is a finding that counts."""
        return any(counts(f.weight, self.fail_on) for r in self.reports for f in r.findings)


def counts(severity: Severity, least: Severity) -> bool:
    """Whether a severity is at least as bad as another."""
    order = list(Severity)
    return order.index(severity) <= order.index(least)
