"""What the checker said of the subjects, as plain values that go into a file and come back."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pullback.check.findings.finding import Finding


@dataclass(frozen=True)
class Found:
    """One finding of the checker about a subject."""

    rule: str
    name: str
    severity: str
    # `package/file.py:12`, from the folder of the packages.
    place: str
    at: str
    expected: str
    got: str
    why: str
    fix: str
    repro: str

    @classmethod
    def of(cls, finding: Finding, folder: Path) -> Found:
        """The finding, with places as they are in the package."""
        words = (finding.place, finding.at, finding.expected, finding.got)
        facts = (finding.why, finding.fix, finding.repro)
        rule = finding.rule
        told = (_inside(word, folder) for word in (*words, *facts))
        return cls(rule.code, rule.name, str(finding.weight), *told)


def _inside(word: str, folder: Path) -> str:
    """The same text with paths from the folder of the packages, not from where we stand.

    A program that looks for packages there names it `packages`; who runs one says where it is.
    """
    prefixes = {str(folder), os.path.relpath(folder)}
    for prefix in sorted(prefixes, key=len, reverse=True):
        word = word.replace(f"{prefix}/", "").replace(f'"{prefix}"', '"packages"')
    return word


@dataclass(frozen=True)
class Result:
    """One subject: what was found, or why nothing could be asked, and what it cost."""

    subject: str
    cpu: float
    found: tuple[Found, ...] = ()
    notes: tuple[str, ...] = ()
    # Rules that were tried and refused, and why.
    refused: tuple[str, ...] = ()
    # Why the subject could not be checked at all.
    error: str = ""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Result:
        """The result that `asdict` made plain."""
        found = tuple(Found(**each) for each in values["found"])
        tuples = {key: tuple(values[key]) for key in ("notes", "refused")}
        return cls(**{**values, **tuples, "found": found})


def save(results: Iterable[Result], path: Path) -> None:
    """Write results, in the order of the subjects' names."""
    plain = [asdict(result) for result in sorted(results, key=lambda result: result.subject)]
    path.write_text(json.dumps(plain, indent=1) + "\n")


def add(result: Result, path: Path) -> list[Result]:
    """Write a result in the place of an older one of its subject; all results that there are.

    Several parts of a run may write to one file: only one does at a time.
    """
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = [other for other in read(path) if other.subject != result.subject]
        save([*results, result], path)
    return [*results, result]


def read(path: Path) -> list[Result]:
    """The results in a file; none if there is no file."""
    if not path.exists():
        return []
    return [Result.from_json(values) for values in json.loads(path.read_text())]
