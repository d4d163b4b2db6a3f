"""What is known of the subjects: a verdict on each finding, and defects that a checker should name.

`verdicts.json` holds verdicts. Each is *true* (the Function does what the finding says, and should
not), *arguable* (it does, and whether it should not depends on what its author promises) or
*false* (it does not, or nothing is wrong with it), and says which run settled it: see `settle.py`.
`defects.json` holds defects that were established without the checker, with the rules that name
them by their cause.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.wild.results import Found, Result

FILE = Path(__file__).with_name("verdicts.json")
DEFECTS = Path(__file__).with_name("defects.json")
KINDS = ("true", "arguable", "false")


@dataclass(frozen=True)
class Verdict:
    """The verdict on what one rule says of one place in a subject."""

    subject: str
    rule: str
    place: str
    severity: str
    # One of KINDS.
    verdict: str
    # The settlement: a function of `settle.py`, or of `evidence/` as `module:function`.
    settled: str
    # What is wrong, or why nothing is, in a sentence.
    why: str
    # Whether to follow its `fix` would break what was right.
    destructive: bool = False

    def __post_init__(self) -> None:
        if self.verdict not in KINDS:
            raise ValueError(f"a verdict is one of {KINDS}, but {self.subject} has {self.verdict}")

    @property
    def key(self) -> tuple[str, str, str]:
        """The finding that it is about."""
        return self.subject, self.rule, self.place


@dataclass(frozen=True)
class Defect:
    """A defect of a subject, established without the checker."""

    subject: str
    # What is wrong, in a sentence.
    what: str
    # The rules that name its cause; any of them will do.
    rules: tuple[str, ...]
    # The function of `evidence/` that shows it, or the settlement of `settle.py`.
    settled: str

    def is_named(self, results: Sequence[Result]) -> bool:
        """Whether one of the rules speaks of the subject."""
        return any(
            found.rule in self.rules
            for result in results
            if result.subject == self.subject
            for found in result.found
        )


def read(path: Path = FILE) -> dict[tuple[str, str, str], Verdict]:
    """The verdicts, by what they are about."""
    if not path.exists():
        return {}
    verdicts = [Verdict(**values) for values in json.loads(path.read_text())]
    known = {verdict.key: verdict for verdict in verdicts}
    if len(known) < len(verdicts):
        twice = sorted({v.key for v in verdicts if known[v.key] is not v})
        raise ValueError(f"each finding has one verdict, but these have several: {twice}")
    return known


def write(verdicts: Sequence[Verdict], path: Path = FILE) -> None:
    """Write the verdicts, in the order of their keys."""
    plain = [asdict(verdict) for verdict in sorted(verdicts, key=lambda verdict: verdict.key)]
    path.write_text(json.dumps(plain, indent=1) + "\n")


def defects(path: Path = DEFECTS) -> list[Defect]:
    """The defects that are known."""
    if not path.exists():
        return []
    listed = json.loads(path.read_text())
    return [Defect(**{**values, "rules": tuple(values["rules"])}) for values in listed]


def key(result: Result, found: Found) -> tuple[str, str, str]:
    """What a verdict on this finding is kept under."""
    return result.subject, found.rule, found.place


def problems(
    results: Sequence[Result], known: dict[tuple[str, str, str], Verdict], *, gone: bool = False
) -> list[str]:
    """What fails a run: no answer, a finding without a verdict, or one that has changed.

    With `gone`, also a verdict of *true* whose finding is no longer made.
    """
    lines = [f"{result.subject}: not checked: {result.error}" for result in results if result.error]
    seen = set()
    for result in results:
        for found in result.found:
            seen.add(key(result, found))
            lines += _problem(result, found, known)
    checked = {result.subject for result in results if not result.error}
    if gone:
        lines += [
            f"{verdict.subject}: {verdict.rule} at {verdict.place} is no longer found"
            for verdict in known.values()
            if verdict.key not in seen and verdict.subject in checked and verdict.verdict == "true"
        ]
    return list(dict.fromkeys(lines))


def _problem(result: Result, found: Found, known: dict[tuple[str, str, str], Verdict]) -> list[str]:
    verdict = known.get(key(result, found))
    at = f"{result.subject}: {found.rule} {found.name}"
    if verdict is None:
        moved = [k for k in known if k[:2] == (result.subject, found.rule)]
        was = f" (there is one for {moved[0][2]})" if moved else ""
        return [f"{at} at {found.place} has no verdict{was}"]
    if verdict.severity != found.severity:
        return [f"{at} is {found.severity}, and its verdict is on one that is {verdict.severity}"]
    return []
