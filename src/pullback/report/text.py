"""A report on the screen: one screen for each finding, in colour where the screen has any.

The words are those of `str(report)`; only colours and line breaks are added here. A pipe gets
neither, nor does anything where `NO_COLOR` is set get colours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from pullback.check.findings.finding import INDENT, Finding, Severity
from pullback.check.findings.report import Report

NARROWEST = 40
COLOURS = {Severity.WRONG: "red", Severity.FRAGILE: "yellow", Severity.WASTEFUL: "blue"}
STYLES = {"expected": "green", "got": "red", "fix": "bold", "place": "cyan"}


def render(report: Report, *, width: int | None = None) -> Text:
    """The report as styled text, its lines broken at `width` where there is one."""
    parts = [_finding(finding, width) for finding in report.findings]
    style = "green" if report.ok and not report.interrupted else ""
    first, *rest = report.summary().splitlines()
    summary = Text(_broken(first, width, "  "), style=f"bold {style}".strip())
    for line in rest:
        summary.append(f"\n{_broken(line, width, INDENT)}", style="dim")
    return Text("\n\n").join([*parts, summary])


def show(report: Report, console: Console) -> None:
    """Print a report; only a terminal has its lines broken."""
    width = max(console.width, NARROWEST) if console.is_terminal else None
    console.print(render(report, width=width), soft_wrap=True, highlight=False)


def _finding(finding: Finding, width: int | None) -> Text:
    colour = COLOURS[finding.weight]
    text = Text()
    text.append(_broken(finding.head, width, "  "), style=f"bold {colour}")
    for label, fact in finding.labelled():
        text.append(f"\n  {label + ':':<10}", style="dim")
        style = STYLES.get(label, "")
        if "\n" in fact:
            text.rstrip()
            for line in fact.splitlines():
                text.append(f"\n    {line}".rstrip(" "), style=style)
        else:
            broken = _broken(f"{INDENT}{fact}", width, INDENT)
            text.append(broken.removeprefix(INDENT), style=style)
    return text


def _broken(line: str, width: int | None, indent: str) -> str:
    """`line` in lines of at most `width`, those after the first behind `indent`."""
    if width is None or len(line) <= width:
        return line
    return "\n".join(_lines(line, width, indent))


def _lines(line: str, width: int, indent: str) -> Iterator[str]:
    own = line[: len(line) - len(line.lstrip())]
    yield from textwrap.wrap(
        line.strip(),
        width,
        initial_indent=own,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
