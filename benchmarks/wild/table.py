"""The table that a run prints: findings per rule and verdict, what they cost, what was named."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.wild.results import Result
from benchmarks.wild.verdicts import KINDS, Defect, Verdict, defects, key

Known = dict[tuple[str, str, str], Verdict]
SERIOUS = ("wrong", "fragile")


@dataclass(frozen=True)
class Counts:
    """The figures of one run over the corpus."""

    packages: int
    subjects: int
    failed: int
    # Subjects with no finding at all.
    clean: int
    # (rule, name, severity) -> verdict -> how many findings.
    rules: dict[tuple[str, str, str], Counter[str]]
    median: float
    high: float
    named: tuple[Defect, ...]
    missed: tuple[Defect, ...]
    destructive: int

    def share(self) -> tuple[int, int]:
        """Of the wrong and fragile findings, how many are not false, and how many there are."""
        serious = [kinds for (_, _, severity), kinds in self.rules.items() if severity in SERIOUS]
        every = sum(sum(kinds.values()) for kinds in serious)
        return every - sum(kinds["false"] + kinds["open"] for kinds in serious), every


def count(results: Sequence[Result], known: Known) -> Counts:
    """The figures of these results; a finding without a verdict is *open*."""
    rules: dict[tuple[str, str, str], Counter[str]] = {}
    destructive = 0
    for result in results:
        for found in result.found:
            verdict = known.get(key(result, found))
            kinds = rules.setdefault((found.rule, found.name, found.severity), Counter())
            kinds[verdict.verdict if verdict else "open"] += 1
            destructive += bool(verdict and verdict.destructive)
    checked = [result for result in results if not result.error]
    times = sorted(result.cpu for result in checked) or [0.0]
    listed = [d for d in defects() if d.subject in {result.subject for result in checked}]
    return Counts(
        len({result.subject.partition(":")[0] for result in results}),
        len(checked),
        len(results) - len(checked),
        sum(not result.found for result in checked),
        dict(sorted(rules.items())),
        statistics.median(times),
        times[min(len(times) - 1, int(0.95 * len(times)))],
        tuple(d for d in listed if d.is_named(results)),
        tuple(d for d in listed if not d.is_named(results)),
        destructive,
    )


def line(result: Result) -> str:
    """One subject, on one line."""
    if result.error:
        return f"{result.subject}: not checked: {result.error}"
    said = ", ".join(f"{found.rule} {found.name}" for found in result.found)
    return f"{result.subject}: {result.cpu:.1f} s, {said or 'nothing found'}"


def text(results: Sequence[Result], known: Known) -> str:
    """The whole table."""
    counts = count(results, known)
    lines = ["", f"{'rule':<34}{'severity':<10}" + "".join(f"{k:>9}" for k in (*KINDS, "open"))]
    for (code, name, severity), kinds in counts.rules.items():
        cells = "".join(f"{kinds[kind] or '':>9}" for kind in (*KINDS, "open"))
        lines.append(f"{code} {name:<29}{severity:<10}{cells}".rstrip())
    lines += ["", *summary(counts)]
    lines += [f"missed: {defect.subject}: {defect.what}" for defect in counts.missed]
    return "\n".join(lines)


def summary(counts: Counts) -> list[str]:
    """The totals, a sentence each."""
    right, serious = counts.share()
    share = f", {100 * right / serious:.1f} %" if serious else ""
    failed = f", {counts.failed} could not be checked" if counts.failed else ""
    listed = len(counts.named) + len(counts.missed)
    return [
        f"{counts.subjects} Functions and ops of {counts.packages} packages{failed}; "
        f"nothing found in {counts.clean}.",
        f"Wrong and fragile findings that are not false: {right} of {serious}{share}.",
        f"Fixes that would break what is right: {counts.destructive}.",
        f"Known defects named by their cause: {len(counts.named)} of {listed}.",
        f"CPU seconds per Function: {counts.median:.2f} in the median, "
        f"{counts.high:.2f} at the 95th percentile.",
    ]
