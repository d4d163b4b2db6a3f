"""Comments that allow a finding: `# pullback: allow[wrong-gradient] the paper does it so`.

One stands on a line, or on a line of its own above it. On a `class` it allows the rule for the
whole class, on or in a method for what is found at that method. Several rules are parted by commas;
names, codes and groups count. What it allows is found all the same, so that one that allows nothing
any more can be told.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from pullback.check.findings.finding import Finding, Rule
from pullback.check.findings.report import Accepted, Report
from pullback.check.rules import explained
from pullback.cli.baseline import Checked
from pullback.report.outcome import Remark

COMMENT = re.compile(r"#\s*pullback:\s*allow\s*\[([^\]]*)\]\s*(.*)")
NO_REASON = "no reason is given"


@dataclass(frozen=True, slots=True)
class Allow:
    """One comment: the rules that it names, where it stands, and the lines that it is for."""

    path: Path
    line: int
    words: tuple[str, ...]
    reason: str
    first: int
    last: int
    owner: str  # the class or function whose lines these are

    def covers(self, finding: Finding, report: Report) -> bool:
        """Whether it allows a finding: by its rule, and by its place or the class it is about."""
        if not finding.rule.is_called(*self.words):
            return False
        file, _, line = finding.place.rpartition(":")
        is_here = line.isdigit() and self.first <= int(line) <= self.last
        is_here = is_here and Path(file).resolve() == self.path
        return is_here or self.owner == report.subject


def allows_in(path: Path) -> tuple[Allow, ...]:
    """The comments of a Python file."""
    return _read(path, path.stat().st_mtime_ns)


@cache
def _read(path: Path, _: int) -> tuple[Allow, ...]:
    text = path.read_text("utf-8", errors="replace")
    if "pullback:" not in text:
        return ()
    try:
        scopes = list(_scopes(ast.parse(text)))
        return tuple(_allows(path, text, scopes))
    except (SyntaxError, ValueError, tokenize.TokenError):
        return ()  # what cannot be parsed was not imported either


def _allows(path: Path, text: str, scopes: Sequence[tuple[int, int, str]]) -> Iterator[Allow]:
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        comment = COMMENT.match(token.string) if token.type == tokenize.COMMENT else None
        if comment is None:
            continue
        line = about = token.start[0]
        while about < len(lines) and re.match(r"\s*(#|$)", lines[about - 1]):
            about += 1  # it stands above what it is for
        words = tuple(word.strip() for word in comment[1].split(",") if word.strip())
        around = [one for one in scopes if one[0] <= about <= one[1]]
        first, last, owner = max(around, default=(about, about, ""))
        yield Allow(path, line, words, comment[2].strip() or NO_REASON, first, last, owner)


def _scopes(tree: ast.AST, prefix: str = "") -> Iterator[tuple[int, int, str]]:
    """The classes and functions of a file: first line, last line, and name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            name = f"{prefix}{node.name}"
            yield first, node.end_lineno or node.lineno, name
            yield from _scopes(node, f"{name}.")
        else:
            yield from _scopes(node, prefix)


# ---- what they say of a run ----


def allowed(checked: Checked) -> tuple[Checked, set[Allow]]:
    """The same without the findings that a comment allows, and the comments that did."""
    used: set[Allow] = set()
    if checked.identity.path is None:
        return checked, used
    report = checked.report
    allows = _everywhere(checked)
    new: list[Finding] = []
    old: list[Accepted] = []
    for finding in report.findings:
        allow = next((one for one in allows if one.covers(finding, report)), None)
        if allow is None:
            new.append(finding)
            continue
        used.add(allow)
        old.append(Accepted(finding, f"{checked.identity.file}:{allow.line}", allow.reason))
    report = replace(report, findings=tuple(new), accepted=(*report.accepted, *old))
    return replace(checked, report=report), used


def _everywhere(checked: Checked) -> list[Allow]:
    """The comments in the file of the target, and in those where something was found."""
    files = {checked.identity.path}
    for finding in checked.report.findings:
        file = Path(finding.place.rpartition(":")[0])
        files |= {file.resolve()} if file.suffix == ".py" and file.is_file() else set()
    return [allow for path in sorted(filter(None, files)) for allow in allows_in(path)]


def idle(checked: Sequence[Checked], used: set[Allow]) -> Iterator[Remark]:
    """The comments in the files of the targets that allow nothing, and those of no known rule.

    A comment is reported only where its rules were tried to their end on what it stands in.
    """
    rules = [one.rule for one in explained()]
    files = {one.identity.path: one.identity.file for one in checked if one.identity.path}
    for path, file in files.items():
        for allow in allows_in(path):
            where = f"{file}:{allow.line}"
            unknown = [w for w in allow.words if not any(rule.is_called(w) for rule in rules)]
            if unknown or not allow.words:
                meant = _meant(unknown[0], rules) if unknown else ""
                wrong = f"`{unknown[0]}` is no rule{meant}" if unknown else "it names no rule"
                yield Remark(where, f"allow[{', '.join(allow.words)}]: {wrong}")
            elif allow not in used and _is_tried(allow, checked):
                yield Remark(where, f"allow[{', '.join(allow.words)}] allows nothing: remove it")


def _is_tried(allow: Allow, checked: Sequence[Checked]) -> bool:
    """Whether the rules of a comment were tried on what it stands in."""
    about = [
        one.report
        for one in checked
        if one.identity.path == allow.path and _is_within(allow.owner, one.report.subject)
    ]
    if not allow.owner or not about or any(report.interrupted for report in about):
        return not allow.owner and bool(checked)
    for report in about:
        left = {skip.rule.code for skip in report.skips if skip.is_refusal}
        tried = set(report.rules) - left
        named = [r.rule for r in explained() if r.rule.is_called(*allow.words)]
        if not any(rule.code in tried for rule in named):
            return False
    return True


def _is_within(owner: str, subject: str) -> bool:
    return owner == subject or owner.startswith(f"{subject}.") or subject.startswith(f"{owner}.")


def _meant(word: str, rules: Sequence[Rule]) -> str:
    known = [name for rule in rules for name in (rule.name, rule.code, rule.group)]
    near = get_close_matches(word, known, 1)
    return f"; did you mean `{near[0]}`?" if near else ""
