"""A baseline: findings that are known, so that only new ones count.

Each is kept by its target, its rule and what it is about (a gradient, an output, a saved tensor),
with the numbers left out: a line that moves, another entry that is the worst, another order of
findings, or a file that has another name now is no new finding. A second one of the same kind is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pullback.check.findings.finding import Finding
from pullback.check.findings.report import Accepted, Report
from pullback.check.processes.crash import RULE as CRASH
from pullback.cli.identity import Identity
from pullback.errors import BaselineError, PlanFileError, first_line
from pullback.plan.store import write_whole

FILE = "pullback-baseline.json"
SCHEMA = "pullback.baseline/1"

_NUMBERS = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True, slots=True, order=True)
class BaselineEntry:
    """A kind of finding: the file of its target, the target, the rule, and what it is about."""

    file: str
    target: str
    rule: str
    about: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.target}" if self.file else self.target
        return f"{where}: {self.rule}, {self.about}"


@dataclass(frozen=True, slots=True)
class Checked:
    """A target that was checked, and what was said of it."""

    identity: Identity
    report: Report


def entry_of(finding: Finding, identity: Identity) -> BaselineEntry:
    """What a baseline keeps of a finding."""
    thing = str(finding.about.thing or finding.at)
    about = _NUMBERS.sub("#", thing)
    rule = f"{finding.rule.code} {finding.rule.name}"
    return BaselineEntry(identity.file, _bare(identity), rule, about)


def _fileless(entry: BaselineEntry, identity: Identity) -> BaselineEntry:
    """The same entry as it was kept while the file of the target (an op) was not looked for."""
    return replace(entry, file="", target=identity.name)


def _bare(identity: Identity) -> str:
    """The target as it is called within its file; the whole name of what has none."""
    return identity.names[1].rpartition(":")[2] if identity.file else identity.name


# ---- the file ----


def read_baseline(path: Path) -> Counter[BaselineEntry]:
    """The findings that are known, and how many of each kind."""
    try:
        whole = json.loads(path.read_text("utf-8"))
        if whole["schema"] != SCHEMA:
            raise ValueError(f"schema {whole['schema']!r}")
        found: Counter[BaselineEntry] = Counter()
        for one in whole["findings"]:
            about = [str(one[key]) for key in ("file", "target", "rule", "about")]
            found[BaselineEntry(*about)] += int(one.get("count", 1))
        return found
    except FileNotFoundError:
        got = "no such file"
    except (OSError, ValueError, KeyError, TypeError) as error:
        got = f"{type(error).__name__}: {error}"
    raise BaselineError(
        f"`{path}` must be a baseline",
        expected=f"a file that `pullback check --write-baseline` wrote ({SCHEMA})",
        got=got,
        fix=f"write it: pullback check ... --write-baseline --baseline {path}",
    )


def write_baseline(path: Path, known: Counter[BaselineEntry]) -> None:
    """Write the findings in order, so that the file changes where they do and nowhere else."""
    lines = []
    for one in sorted(known):
        kept = {"file": one.file, "target": one.target, "rule": one.rule, "about": one.about}
        more = {"count": known[one]} if known[one] > 1 else {}
        lines.append("    " + json.dumps({**kept, **more}, ensure_ascii=False))
    findings = "[\n" + ",\n".join(lines) + "\n  ]" if lines else "[]"
    text = f'{{\n  "schema": "{SCHEMA}",\n  "findings": {findings}\n}}\n'
    try:
        write_whole(path, text)
    except (OSError, PlanFileError) as error:
        got = getattr(error, "strerror", None) or first_line(error)
        raise BaselineError(f"`{path}` must be a file that can be written", got=got) from None


# ---- what it says of a run ----


def accepted(
    checked: Checked, known: Counter[BaselineEntry], name: str, lost: Sequence[str] = ()
) -> Checked:
    """The same without the findings that are known; those are taken out of `known`.

    `lost` are the files of the baseline that are not there any more, which may have been renamed.
    """
    new: list[Finding] = []
    old: list[Accepted] = []
    for finding in checked.report.findings:
        own = entry_of(finding, checked.identity)
        renamed = (replace(own, file=file) for file in lost if checked.identity.file)
        same = (own, _fileless(own, checked.identity), *renamed)
        entry = next((one for one in same if known[one] > 0), None)
        if entry is not None:
            known[entry] -= 1
            old.append(Accepted(finding, name))
        else:
            new.append(finding)
    report = checked.report
    report = replace(report, findings=tuple(new), accepted=(*report.accepted, *old))
    return replace(checked, report=report)


def gone(
    known: Counter[BaselineEntry], checked: Sequence[Checked], files: Iterable[str]
) -> dict[BaselineEntry, int]:
    """What is left of the baseline though it was looked for: by these checks, in these files.

    `files` are those of which every Function was checked, so that one that is not there is gone.
    """
    tried = {
        key: _codes(one.report)
        for one in checked
        if not one.report.interrupted
        for key in ((one.identity.file, _bare(one.identity)), ("", one.identity.name))
    }
    whole = set(files) - {one.identity.file for one in checked if one.report.interrupted}

    def is_looked_for(entry: BaselineEntry) -> bool:
        codes = tried.get((entry.file, entry.target))
        return entry.file in whole if codes is None else entry.rule.partition(" ")[0] in codes

    return {entry: count for entry, count in known.items() if count and is_looked_for(entry)}


def _codes(report: Report) -> set[str]:
    """The rules that were tried to their end; a crash is looked for by all of them."""
    refused = {skip.rule.code for skip in report.skips if skip.is_refusal}
    return {*report.rules, CRASH.code} - refused


def renewed(
    known: Counter[BaselineEntry], left: dict[BaselineEntry, int], checked: Sequence[Checked]
) -> Counter[BaselineEntry]:
    """The baseline to write: what these checks found, and what they did not look for.

    `known` is what was not found of the old one, `left` what of that is gone.
    """
    found = Counter(
        entry_of(finding, one.identity)
        for one in checked
        for finding in (*one.report.findings, *_from_baseline(one.report))
    )
    return found + (known - Counter(left))


def _from_baseline(report: Report) -> Iterable[Finding]:
    return (one.finding for one in report.accepted if not one.reason)
