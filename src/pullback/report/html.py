"""Reports as one HTML page that needs nothing else: no network, no files beside it.

Each finding has the source around its place, expected and got as a map of the whole gradient where
that is small, the difference between the backward that is written and the right one, and a repro to
copy. It is light or dark as the reader's system is.
"""

from __future__ import annotations

import difflib
import html as escaping
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import PythonLexer  # type: ignore[import-untyped]

from pullback.check.findings.finding import Finding, Severity
from pullback.check.findings.report import Report
from pullback.graph.cost import bytes_text
from pullback.report.excerpt import Excerpt, excerpt_of, method_at
from pullback.report.heat import Heat, heats_of
from pullback.report.outcome import Remark

SUFFIX = ".html"
STYLES = {"light": "default", "dark": "github-dark"}
IN_WORDS = ("at", "inputs", "expected", "got", "why", "fix")
_QUOTED = re.compile("`([^`]+)`")
HEIGHT = 640  # of a report in a notebook, in pixels


def render(
    reports: Sequence[Report], errors: Sequence[str] = (), remarks: Sequence[Remark] = ()
) -> str:
    """The page."""
    shown = [_shown(report, number) for number, report in enumerate(reports)]
    counts = {s.value: sum(len(report.of(s)) for report in reports) for s in Severity}
    page: str = (
        page_templates()
        .get_template("page.html")
        .render(
            reports=shown,
            errors=list(errors),
            remarks=[str(remark) for remark in remarks],
            counts=counts,
            total=sum(counts.values()),
            styles=_styles(),
        )
    )
    return page


def framed(reports: Sequence[Report], errors: Sequence[str] = ()) -> str:
    """The page in a frame, for a notebook, whose own styles it leaves alone."""
    return in_frame(render(reports, errors), "pullback check", HEIGHT)


def in_frame(page: str, title: str, height: int) -> str:
    """A whole page in a frame of another."""
    style = f"width:100%;height:{height}px;border:1px solid #8884;border-radius:6px"
    held = escaping.escape(page, quote=True)
    return f'<iframe srcdoc="{held}" style="{style}" title="{escaping.escape(title)}"></iframe>'


@cache
def page_templates() -> Environment:
    """The templates of our pages."""
    made = Environment(
        loader=PackageLoader("pullback.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["python"] = _python
    made.filters["words"] = _words
    made.filters["size"] = bytes_text
    return made


# ---- what the template shows ----


@dataclass(frozen=True, slots=True)
class ShownFinding:
    """A finding as the page has it."""

    anchor: str
    finding: Finding
    words: list[tuple[str, str]]
    excerpt: Excerpt | None
    heats: list[Heat]
    diff: list[tuple[str, str]]  # the kind of each line, and the line
    code: list[tuple[str, str]]  # labels, and code that is shown as it is


@dataclass(frozen=True, slots=True)
class ShownReport:
    """A report as the page has it."""

    anchor: str
    report: Report
    counts: dict[str, int]
    findings: list[ShownFinding]
    refused: list[tuple[str, str]]
    idle: list[str]
    proof: list[str]


def _shown(report: Report, number: int) -> ShownReport:
    anchor = f"t{number}"
    refused = [
        (str(skip).partition(": ")[0], skip.reason) for skip in report.skips if skip.is_refusal
    ]
    return ShownReport(
        anchor,
        report,
        {s.value: len(report.of(s)) for s in Severity},
        [_finding(finding, f"{anchor}f{i}") for i, finding in enumerate(report.findings)],
        refused,
        list(dict.fromkeys(skip.rule.name for skip in report.skips if not skip.is_refusal)),
        list(_proof(report)),
    )


def _finding(finding: Finding, anchor: str) -> ShownFinding:
    facts = dict(finding.labelled())
    diff = list(_diff(finding))
    code = {label: fact for label, fact in finding.facts.items() if "\n" in fact}
    if diff:
        code.pop("backward", None)
    words = [(label, facts[label]) for label in IN_WORDS if label in facts]
    words += [(label, fact) for label, fact in finding.facts.items() if "\n" not in fact]
    return ShownFinding(
        anchor,
        finding,
        words,
        excerpt_of(finding.place),
        heats_of(finding),
        diff,
        list(code.items()),
    )


def _diff(finding: Finding) -> Iterator[tuple[str, str]]:
    """The backward that is written and the right one, line by line, where both are known."""
    right = finding.facts.get("backward", "")
    found = method_at(finding.place)
    if not right or found is None or found.name not in ("backward", "vjp"):
        return
    old = textwrap.dedent(found.text).splitlines()
    for line in difflib.unified_diff(
        old, right.splitlines(), "written", "derived", lineterm="", n=99
    ):
        if not line.startswith(("---", "+++", "@@")):
            yield {"+": "new", "-": "old"}.get(line[:1], "same"), line


def _proof(report: Report) -> Iterator[str]:
    """What was proved, in sentences."""
    proved = report.proved
    if proved is None:
        return
    if proved.gradients:
        names = ", ".join(f"`{name}`" for name in proved.gradients)
        yield f"Right for all inputs, {proved.scope}: the gradient of {names}."
        yield from (f"{proviso}." for proviso in proved.provisos)
    if proved.unknown:
        names = ", ".join(f"`{name}`" for name in proved.unknown)
        yield f"Not decided: the gradient of {names}. {proved.reason}"
    elif not proved.gradients:
        yield f"Nothing: {proved.reason}"


# ---- code in colours ----


def _python(code: str) -> Markup:
    """Python in colours, safe to stand in the page."""
    return Markup(highlight(code, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)))


def _words(text: str) -> Markup:
    """A sentence, with what stands in backticks as code."""
    return Markup(_QUOTED.sub(r"<code>\1</code>", str(escape(text))))


@cache
def _styles() -> dict[str, Markup]:
    """The colours of code, by light and dark."""
    made: dict[str, Any] = {k: HtmlFormatter(style=style) for k, style in STYLES.items()}
    return {kind: Markup(made[kind].get_style_defs(".code")) for kind in STYLES}
