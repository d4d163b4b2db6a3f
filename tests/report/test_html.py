"""The page stands alone, shows what a finding says, and holds whatever is in the words."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

import pullback as pb
from pullback.check.findings.facts import Sheet
from pullback.check.findings.report import Accepted, Proved, Reports
from pullback.report.excerpt import excerpt_of, method_at
from pullback.report.heat import heats_of
from pullback.report.html import framed, render
from pullback.report.outcome import Remark
from tests.report.reports import CUT, REPORT, SOUND, WRONG

VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """The elements of a page with their attributes, its text, and tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.wrong, self.words = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)

    def of(self, tag, name=""):
        classes = [(t, a, (a.get("class") or "").split()) for t, a in self.elements]
        return [a for t, a, have in classes if t == tag and (not name or name in have)]


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The page on a wrong Function in a file, checked with all that a report can hold."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(SOURCE, encoding="utf-8")
    sheet = Sheet((2, 2), ((1.0, -2.0), (0.17, 4.0)), ((1.0, 2.0), (0.5, float("nan"))))
    at = replace(WRONG.about.at, index=(1, 0))
    expected = replace(WRONG.about.expected, value=0.17)
    about = replace(WRONG.about, sheet=sheet, at=at, expected=expected)
    found = replace(WRONG, place="ops.py:10", about=about)
    found = replace(found, facts={"backward": RIGHT, "also": "scaled-cotangent"})
    report = replace(
        REPORT,
        findings=(found, *REPORT.findings[1:]),
        accepted=(Accepted(WRONG, "ops.py:3", "as the paper"),),
        proved=Proved((), ("x",), "", (), "it draws numbers"),
    )
    return Page(render([report, SOUND, CUT], ["E401 a: <b>"], [Remark("ops.py:1", "remove `it`")]))


SOURCE = """\
import torch


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g  # </pre><script>alert(1)</script>
"""
RIGHT = "def backward(ctx, g):\n    (x,) = ctx.saved_tensors\n    return g * x.cos()"


def test_page_is_well_formed(page):
    assert page.wrong == []
    assert page.open == []


def test_page_needs_nothing_else(page):
    told = [a for _, a in page.elements if a.get("src") or (a.get("href") or "#")[0] != "#"]

    assert told == []
    assert page.of("link") == []
    assert "@import" not in page.text
    assert "url(" not in page.text


def test_code_of_the_user_is_not_run(page):
    assert len(page.of("script")) == 1
    assert "</pre><script>alert(1)</script>" in page.text
    assert "E401 a: <b>" in page.text


def test_overview_counts_by_severity_and_target(page):
    links = [a["href"] for a in page.of("a")]
    anchors = {a["id"] for _, a in page.elements if "id" in a}

    assert links == ["#t0", "#t1", "#t2"]
    assert {link[1:] for link in links} <= anchors
    assert "3 findings in 3 targets." in page.text
    assert "1 could not be checked." in page.text


def test_each_finding_can_be_filtered(page):
    severities = [a["data-severity"] for a in page.of("details", "finding")]

    assert severities == ["wrong", "fragile", "wasteful"]
    assert [a["data-severity"] for a in page.of("input") if "data-severity" in a] == severities


def test_source_is_shown_around_the_place(page):
    assert len(page.of("pre", "src")) == 2  # at ops.py:10 and ops.py:3; one has no place
    assert len(page.of("span", "here")) == 2


def test_edit_is_shown_as_a_diff(page):
    assert len(page.of("span", "old")) == 1
    assert len(page.of("span", "new")) == 2
    assert "-    return g  # </pre>" in page.text
    assert "+    return g * x.cos()" in page.text


def test_gradient_is_shown_as_maps(page):
    assert [a["aria-label"] for a in page.of("table", "map")] == ["expected", "got", "difference"]
    worst = [a["title"] for a in page.of("td", "worst")]
    assert worst == ["[1, 0]: 0.17", "[1, 0]: 0.5", "[1, 0]: 0.33"]
    assert len(page.of("td", "none")) == 2  # NaN, and the difference from it


def test_repro_can_be_copied(page):
    assert len(page.of("div", "copy")) == 1
    assert "assert torch.ones(1) == 2  # 100%" in page.text


def test_rest_is_told(page):
    for words in (
        "as the paper",
        "it draws numbers",
        "the inputs are guessed",
        "Interrupted",
        "races between kernels",
        "remove it",
        "[bold]backward[/]",
        "scaled-cotangent",
    ):
        assert words in page.text


def test_light_and_dark_have_their_colours(page):
    assert "prefers-color-scheme: dark" in page.text
    assert page.text.count("--back:") == 2


def test_nothing_found_is_said():
    page = Page(render([SOUND]))

    assert page.wrong == []
    assert "Nothing found in 1 target." in " ".join(page.text.split())


# ---- reports ----


def test_report_gives_its_page():
    assert REPORT.to_html() == render([REPORT])
    assert Reports((REPORT, SOUND), ("E1",)).to_html() == render([REPORT, SOUND], ["E1"])


def test_notebook_gets_a_frame():
    text = REPORT._repr_html_()
    (frame,) = Page(text).of("iframe")

    assert frame["srcdoc"] == render([REPORT])
    assert text == framed([REPORT])
    assert Page(Reports((SOUND,))._repr_html_()).of("iframe")


def test_check_keeps_the_gradient():
    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 3 * g

    report = pb.check(Tripled, (torch.ones(2, 3),), select=["wrong-factor"])
    (finding,) = report.findings
    expected, got, apart = heats_of(finding)

    assert finding.about.sheet.shape == (2, 3)
    assert [len(heat.rows) for heat in (expected, got, apart)] == [2, 2, 2]
    assert len(Page(report.to_html()).of("table", "map")) == 3


def test_map_is_of_the_numbers_that_are_reported():
    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * torch.sigmoid(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            s = torch.sigmoid(x)
            return g * (s + x * s * (1 + s))

    x = torch.linspace(-2, 2, 64).reshape(4, 16)
    (finding,) = pb.check(Swish, (x,), select=["wrong-gradient"]).findings
    expected, got, _ = heats_of(finding)  # those of its repro
    row, column = finding.about.index

    assert expected.rows[row][column].text == f"[{row}, {column}]: {finding.expected}"
    assert got.rows[row][column].text == f"[{row}, {column}]: {finding.got}"
    assert got.rows[row][column].is_worst


# ---- parts ----


def test_sheet_of_another_call_is_not_shown():
    sheet = Sheet((9,), ((9.0,) * 9,), ((1.0,) * 9,))

    assert heats_of(replace(WRONG, about=replace(WRONG.about, sheet=sheet))) == []
    assert heats_of(WRONG) == []


@pytest.mark.parametrize("place", ["", "none.py:3", "none.py", "ops.py:99", "ops.py:0"])
def test_place_that_is_not_there_has_no_excerpt(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(SOURCE)

    assert excerpt_of(place) is None
    assert method_at(place) is None


def test_colours_of_code_and_numbers_do_not_meet():
    classes = set(re.findall(r"\.code \.(\w+) ", render([SOUND])))

    assert {"k", "n"} & classes
    assert {"here", "lineno", "new", "old", "same"}.isdisjoint(classes)
